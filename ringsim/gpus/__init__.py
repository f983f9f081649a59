"""GPUs: how long their kernels take, from a file for each GPU."""

from ringsim.gpus.gpu import Gpu, gpu_names, load_gpu
from ringsim.gpus.roofline import Roofline
