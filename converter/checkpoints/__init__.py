"""Opening sources without running what they carry: factories that the user names, and weights files."""
