"""Two epochs or more of a small Keras model: what came of it, as JSON, from each rank.

horovodrun -np 2 python keras_digits.py EPOCHS [SECONDS_A_STEP [NOTICE_IN]]

NOTICE_IN: the epoch before whose last step it gets a notice to stop.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from horovod.tensorflow import allgather_object
from schedulearn_train.keras import Training
from tensorflow import keras

SAMPLES, BATCH = 256, 16
epochs, (pause, notice_in, *_) = int(sys.argv[1]), [*map(float, sys.argv[2:]), 0.0, 0.0]
hvd.init()
keras.utils.set_random_seed(hvd.rank())  # ranks begin with different weights, and are made equal
chance = np.random.default_rng(0)
x = chance.normal(size=(SAMPLES, 8)).astype("float32")
y = (x @ chance.normal(size=(8, 3))).argmax(axis=1)
model = keras.Sequential([keras.Input(shape=(8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(3)])
model.compile(
    optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.02)),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
training = Training(model, epochs=epochs, batch_size=BATCH)
began_in = training.epoch


class Slowly(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if training.rank == 0 and batch == 0:
            print(f"in epoch {training.epoch + 1} of {epochs} on {training.size} ranks", flush=True)
        if training.rank == 0 and training.epoch + 1 == notice_in and batch + 2 == self.params["steps"]:
            Path(os.environ["SCHEDULEARN_NOTICE"]).write_text('{"reason": "preempted", "until": 4000000000}')
        time.sleep(pause)


@training.elastic
def train() -> Any:
    data = tf.data.Dataset.from_tensor_slices((x, y)).shard(training.size, training.rank).batch(BATCH)
    return model.fit(
        data, validation_data=(x, y), initial_epoch=training.epoch, epochs=epochs,
        callbacks=[*training.callbacks(), Slowly()], verbose=0,
    )  # fmt: skip


history = train()
weights = float(sum(np.abs(each).sum() for each in model.get_weights()))
found = {
    "rank": training.rank, "ranks": training.size, "began_in": began_in, "steps": training.steps,
    "weights": allgather_object(weights), "losses": [float(loss) for loss in history.history["loss"]],
    "optimizer_steps": int(np.asarray(model.optimizer.variables[0])),
}  # fmt: skip
if training.rank == 0:
    print(json.dumps(found), flush=True)
