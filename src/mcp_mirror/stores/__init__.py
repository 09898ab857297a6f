"""Where values are kept."""
