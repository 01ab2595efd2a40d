"""The part of AlpaSim's gRPC interface that a driver speaks (version 0.54), as a table."""
from __future__ import annotations

from functools import cache

from ..messages import make_messages

API_VERSION = (0, 54, 0)
SERVICE = 'egodriver.EgodriverService'
METHODS = {
    'start_session': ('egodriver.DriveSessionRequest', 'common.SessionRequestStatus'),
    'close_session': ('egodriver.DriveSessionCloseRequest', 'common.Empty'),
    'submit_image_observation': ('egodriver.RolloutCameraImage', 'common.Empty'),
    'submit_egomotion_observation': ('egodriver.RolloutEgoTrajectory', 'common.Empty'),
    'submit_route': ('egodriver.RouteRequest', 'common.Empty'),
    'submit_recording_ground_truth': ('egodriver.GroundTruthRequest', 'common.Empty'),
    'drive': ('egodriver.DriveRequest', 'egodriver.DriveResponse'),
    'get_version': ('common.Empty', 'common.VersionId'),
}
"""Request and response of each call."""
COMMON = {
    'Empty': '',
    'SessionRequestStatus': '',
    'Quat': 'float w 1, float x 2, float y 3, float z 4',
    'Vec3': 'float x 1, float y 2, float z 3',
    'Pose': 'common.Vec3 vec 1, common.Quat quat 2',
    'DynamicState': 'common.Vec3 angular_velocity 1, common.Vec3 linear_velocity 2, '
                    'common.Vec3 linear_acceleration 3, common.Vec3 angular_acceleration 4',
    'PoseAtTime': 'common.Pose pose 1, fixed64 timestamp_us 2',
    'Trajectory': 'repeated common.PoseAtTime poses 1',
    'VersionId.APIVersion': 'uint32 major 1, uint32 minor 2, uint32 patch 3',
    'VersionId': 'string version_id 1, string git_hash 2, '
                 'common.VersionId.APIVersion grpc_api_version 3',
}
SENSORSIM = {
    'CameraSpec': 'string logical_id 5, uint32 resolution_h 7, uint32 resolution_w 8',
    'AvailableCamerasReturn.AvailableCamera':
        'nre.grpc.protos.sensorsim.CameraSpec intrinsics 1, common.Pose rig_to_camera 2, '
        'string logical_id 3',
}
_SPEC = 'egodriver.DriveSessionRequest.RolloutSpec'
EGODRIVER = {
    'Route': 'repeated common.Vec3 waypoints 1, fixed64 timestamp_us 2',
    'GroundTruth': 'common.Trajectory trajectory 1, fixed64 timestamp_us 2',
    'DriveSessionRequest.RolloutSpec.VehicleDefinition':
        'repeated nre.grpc.protos.sensorsim.AvailableCamerasReturn.AvailableCamera '
        'available_cameras 3',
    'DriveSessionRequest.RolloutSpec': f'{_SPEC}.VehicleDefinition vehicle 1',
    'DriveSessionRequest.DebugInfo': 'string scene_id 1',
    'DriveSessionRequest':
        'string session_uuid 1, fixed64 random_seed 2, '
        f'egodriver.DriveSessionRequest.DebugInfo debug_info 4, {_SPEC} rollout_spec 5',
    'DriveSessionCloseRequest': 'string session_uuid 1',
    'RolloutCameraImage.CameraImage':
        'fixed64 frame_start_us 2, fixed64 frame_end_us 3, bytes image_bytes 4, '
        'string logical_id 5',
    'RolloutCameraImage': 'string session_uuid 1, '
                          'egodriver.RolloutCameraImage.CameraImage camera_image 3',
    'RolloutEgoTrajectory': 'string session_uuid 1, common.Trajectory trajectory 3, '
                            'repeated common.DynamicState dynamic_states 5',
    'RouteRequest': 'string session_uuid 1, egodriver.Route route 3',
    'GroundTruthRequest': 'string session_uuid 1, egodriver.GroundTruth ground_truth 2',
    'DriveRequest': 'string session_uuid 1, fixed64 time_now_us 3, fixed64 time_query_us 4, '
                    'bytes renderer_data 5',
    'DriveResponse.DebugInfo': 'bytes unstructured_debug_info 1, '
                               'repeated common.Trajectory sampled_trajectories 2',
    'DriveResponse': 'common.Trajectory trajectory 2, '
                     'egodriver.DriveResponse.DebugInfo debug_info 3, bool terminate_session 4',
}


@cache
def messages() -> dict[str, type]:
    """Message classes by full name; raises `UserError` without protobuf."""
    return make_messages([('common', 'proto3', COMMON),
                          ('nre.grpc.protos.sensorsim', 'proto3', SENSORSIM),
                          ('egodriver', 'proto3', EGODRIVER)])
