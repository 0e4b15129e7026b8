"""What every layer stands on: data types, targets, errors, locations, text, passes."""
