"""A robot arm in MuJoCo: simulator, scripted expert, plans and action heads."""
