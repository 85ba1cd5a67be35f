"""Memory, measured: what each rank holds by class, at named moments and at the peak. Parts are imported where they are used."""
