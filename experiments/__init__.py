"""What is measured of the package, and how it is shown: `python -m experiments --help`. No part of the package itself."""
