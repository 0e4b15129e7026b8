"""What every front end shares: emitting nodes, and one report of all that is not supported."""
