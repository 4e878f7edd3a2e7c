"""Who may call: keys, origins, how much is open for each."""
