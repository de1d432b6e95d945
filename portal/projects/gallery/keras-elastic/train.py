"""Learn to read handwritten digits with Keras, on a number of ranks that may change at any time.

Outside Schedulearn: `horovodrun -np 1 --min-np 1 --max-np 2 -H localhost:2 python train.py`, or `python train.py`.
"""

import argparse
import csv
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides messages about the processor

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from schedulearn_train.keras import Training
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tensorflow import keras

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--batch-size", type=int, default=32, help="size for each rank")
options = parser.parse_args()

hvd.init()
if gpus := tf.config.list_physical_devices("GPU"):
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    tf.config.experimental.set_memory_growth(gpus[hvd.local_rank()], True)
keras.utils.set_random_seed(0)

outputs = Path(os.environ.get("SCHEDULEARN_OUTPUTS", "outputs"))
outputs.mkdir(exist_ok=True)

# 1,797 images of 8 x 8 pixels, shipped with scikit-learn: nothing is downloaded.
pictures, digits = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(
    (pictures / 16).astype("float32"), digits, test_size=0.25, random_state=0, stratify=digits
)

model = keras.Sequential(
    [
        keras.Input(shape=(64,)),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(2e-3)),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
# Restarts from a checkpoint, if there is one.
training = Training(model, epochs=options.epochs, batch=options.batch_size)


class Report(keras.callbacks.Callback):
    """Writes a line for each epoch, on rank 0."""

    def on_epoch_end(self, epoch, logs=None):
        if training.rank == 0:
            number, ranks, loss, accuracy = epoch + 1, training.size, logs["loss"], logs["val_accuracy"]
            print(f"epoch {number}/{options.epochs}  ranks {ranks}  loss {loss:.4f}  accuracy {accuracy:.4f}")
            with open(outputs / "metrics.csv", "a", newline="") as file:
                csv.writer(file).writerow([number, ranks, loss, accuracy])


@training.elastic  # repeats the epoch when the number of ranks changes
def train():
    print(f"I am rank {training.rank} of {training.size}, in epoch {training.epoch + 1}")
    data = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(len(x_train), seed=0)
    model.fit(
        data.shard(training.size, training.rank).batch(options.batch_size),
        validation_data=(x_test, y_test),
        initial_epoch=training.epoch,
        epochs=options.epochs,
        callbacks=[*training.callbacks(), Report()],
        verbose=0,
    )


train()

if training.rank == 0:
    model.save_weights(outputs / "model.weights.h5")
    print(f"accuracy: {model.evaluate(x_test, y_test, verbose=0)[1]:.4f}")
