"""All cores as devices, as the command line has them."""

import os

import jax

jax.config.update("jax_num_cpu_devices", os.cpu_count())
