"""Training steps: of any program from its trace, and of DDP from the sizes and times of layers."""

from ringsim.training_step.ddp import (
    BucketCaps,
    DdpConfig,
    DdpStep,
    Phase,
    PredictedDdpStep,
    fill_buckets,
    predict_ddp,
    recommend,
    sweep_caps,
)
from ringsim.training_step.group_calls import GroupCalls
from ringsim.training_step.outlook import MAX_SCALE, fitted_scale, gpu_interval, with_better_steps, with_step_interval
from ringsim.training_step.prediction import (
    LOWER_BOUND,
    Computing,
    ScaledStep,
    StepSimulation,
    TracePrediction,
    TraceScaling,
    calls_of,
    pace_together,
    predict_trace,
)
from ringsim.training_step.profile import ELEMENT_BYTES, Parameter, StepProfile, load_layers
from ringsim.training_step.simulate_step import StepTimeline, simulate_step
