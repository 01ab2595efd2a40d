"""Pictures of a recorded drive: camera overlays, bird's-eye view, video, contact sheet."""
