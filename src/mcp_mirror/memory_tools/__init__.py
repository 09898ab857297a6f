"""What each of our own tools does. They read and change the caller's memory and never call an upstream."""
