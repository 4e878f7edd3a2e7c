"""Fleet simulator: the production policies on a manual clock, against modelled replicas."""
