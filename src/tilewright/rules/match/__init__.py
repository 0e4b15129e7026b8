"""What programs are, by structure: contractions, windows, nests. For rules of any target."""
