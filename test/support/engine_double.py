"""The engine double, which the fault harness uses too."""
from flashdrive_ros.evaluation.trust.engine_double import DT_S, POINTS, EngineDouble

__all__ = ['DT_S', 'POINTS', 'EngineDouble']
