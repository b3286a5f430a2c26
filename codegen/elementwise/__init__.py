"""Elements on demand: index arithmetic, elementwise ops and vector math."""
