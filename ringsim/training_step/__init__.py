"""A data-parallel training step: DDP's buckets, all-reduced while the backward pass goes on."""

from ringsim.training_step.buckets import BucketCaps, Phase, fill_buckets
from ringsim.training_step.layers import load_layers
from ringsim.training_step.prediction import Prediction, reason, recommend
from ringsim.training_step.profile import ELEMENT_BYTES, Parameter, StepProfile
from ringsim.training_step.step import BucketTimes, DdpConfig, PredictedStep, predict_step, scale, sweep_caps
