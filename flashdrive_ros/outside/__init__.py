"""Evaluation outside: our engine behind the interfaces of AlpaSim, NAVSIM and Waymo E2E."""
