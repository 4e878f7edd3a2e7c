"""Random requests against real parts for as long as one likes; the short versions run with the tests."""
