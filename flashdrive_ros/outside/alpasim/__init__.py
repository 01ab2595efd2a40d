"""AlpaSim's driver service over our engine: `flashdrive serve alpasim`."""
