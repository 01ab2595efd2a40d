"""Metrics of NAVSIM (PDMS, EPDMS) and of Waymo E2E (rater feedback score, ADE)."""
