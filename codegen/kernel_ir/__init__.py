"""Kernels under construction: functions of upstream MLIR, their arguments and launches."""
