"""A data-parallel training step: DDP's buckets, all-reduced while the backward pass goes on."""

from ringsim.training_step.buckets import BucketCaps, Phase, fill_buckets
from ringsim.training_step.ddp_trace import DdpConfig
from ringsim.training_step.group_calls import GroupCalls
from ringsim.training_step.layers import load_layers
from ringsim.training_step.prediction import Prediction, reason, recommend
from ringsim.training_step.profile import ELEMENT_BYTES, Parameter, StepProfile
from ringsim.training_step.simulate_step import simulate_step
from ringsim.training_step.step import BucketTimes, PredictedStep, ddp_interval, predict_step, scale, sweep_caps
from ringsim.training_step.step_timeline import StepTimeline
from ringsim.training_step.trace_prediction import (
    GPUS,
    LOWER_BOUND,
    MAX_SCALE,
    Computing,
    Roofline,
    TracePrediction,
    calls_of,
    fitted_scale,
    pace_together,
    predict_trace,
    trace_interval,
)
from ringsim.training_step.trace_scaling import ScaledStep, TraceScaling, predict_scaling
