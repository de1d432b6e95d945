import cv2
import numpy as np


def load(path):
    return cv2.resize(cv2.imread(path), (32, 32)).astype(np.float32) / 255
