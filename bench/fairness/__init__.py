"""What fairness costs and what it gives: `make bench SUITE=fairness`."""
