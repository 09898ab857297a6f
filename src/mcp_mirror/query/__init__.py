"""Reading, searching and changing stored values. Pure: a value is bytes, and what takes long asks whether to go on."""
