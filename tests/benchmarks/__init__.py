"""Tests of the benchmark programs: what they print, never how fast anything is."""
