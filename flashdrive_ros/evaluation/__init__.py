"""How good the engine is: parity with the released model, metrics, measurements."""
