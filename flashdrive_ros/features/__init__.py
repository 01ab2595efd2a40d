"""
Plan features for action models: read a message, get what an interface takes.

    features = from_message(message)            # flashdrive_ros/msg/PlanFeatures
    context = for_cosmos(features)              # Cosmos-Predict2.5
    states, mask = for_starvla_piv3(features)   # StarVLA QwenPI_v3
    states = for_recogdrive(features)           # ReCogDrive's diffusion head

NumPy; `backend='torch'` gives tensors.  Nothing of the engine or of ROS is imported.
"""
from .interfaces import for_cosmos, for_recogdrive, for_starvla_piv3
from .reading import SEGMENTS, FeatureError, Features, from_message, from_plan

__all__ = ['SEGMENTS', 'FeatureError', 'Features', 'for_cosmos', 'for_recogdrive',
           'for_starvla_piv3', 'from_message', 'from_plan']
