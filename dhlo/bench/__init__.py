"""Measuring models beside other compilers: adapters, workers that take turns, machine ceilings."""
