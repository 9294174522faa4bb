"""Parts that engines share while a job runs. Engines and conformance kits import the modules that they need."""
