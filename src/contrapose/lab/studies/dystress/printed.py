"""The numbers in the DySTreSS paper, by table: for each row, data set by data set and quantity by quantity.

Accuracies are in %; None stands for a number that the paper does not give.
"""

from __future__ import annotations

# Figure 5, ImageNet-100: 20-NN accuracy, -U, tolerance, inter-class U. Only inter-class U is given as a number.
FIGURE5 = {
    "0.07–0.1": (None, None, None, -0.6584),
    "0.07–0.5": (None, None, None, -0.7202),
    "0.07–0.2": (None, None, None, -0.7422),
    "0.1–0.2": (None, None, None, -0.7710),
}

# Tables 1, 2 and 8: linear top-1 and top-5 accuracy on ImageNet-100, ImageNet-1K and ImageNet-100.
TABLE1 = {
    "SimCLR": (75.54, 93.06),
    "DCL (old form)": (77.38, 94.01),
    "BYOL": (75.02, 93.42),
    "Barlow Twins": (75.88, 93.96),
    "VICReg": (76.36, 94.14),
    "MACL": (78.28, 94.25),
    "DySTreSS": (78.78, 94.70),
    "DySTreSS*": (78.82, 94.76),
}
TABLE2 = {
    "SimCLR": (63.2, 85.2),
    "DCL (old form)": (65.1, 86.2),
    "DCLW (old form)": (64.2, 86.0),
    "BYOL": (62.4, 82.7),
    "Barlow Twins": (62.9, 84.3),
    "VICReg": (63.0, 85.4),
    "MACL": (64.3, None),
    "DySTreSS": (65.21, 86.55),
}
TABLE8 = {
    "Barlow Twins (2048)": (78.62, 94.72),
    "VICReg (2048)": (79.22, 95.06),
    "ZeroICL (256)": (78.02, 95.61),
    "ZeroFCL (2048)": (79.32, 94.94),
    "ZeroCL (2048)": (79.26, 94.98),
    "W-MSE (256)": (69.06, 91.22),
    "ARB (2048)": (79.48, 95.51),
    "DINO (256)": (74.84, 92.92),
    "BYOL (4096)": (80.09, 94.99),
    "DySTreSS (2048)": (81.24, 95.64),
}

# 200-NN accuracy on CIFAR-10 and CIFAR-100, as in Tables 9, 10 and 16.
TABLE3 = {
    "SimCLR": (83.65, 52.32),
    "MoCo v2": (83.9, 54.01),
    "DCL (old form)": (84.4, 56.02),
    "MACL": (84.85, 56.15),
    "DySTreSS": (85.68, 56.57),
}
TABLE9 = {
    "DINO": (84.02, 46.79),
    "W-MSE": (85.52, 52.72),
    "DySTreSS": (85.68, 56.57),
}
TABLE10 = {
    "cosine": (85.85, 56.57),
    "linear": (85.74, 56.78),
    "exponential": (85.81, 56.47),
}
TABLE16 = {
    "cosine": (85.85, 56.57),
    "monotonic cosine": (85.84, 56.21),
}

# 1-NN, 10-NN, few-shot and long-tail accuracy on CIFAR-10-LT, then on CIFAR-100-LT. The paper gives one number and does not
# say what it measures, here and in Table 5; see the study's note.
TABLE4 = {
    "Kukleva et al.": (62.91, None, None, None, 30.20, None, None, None),
    "DySTreSS": (64.98, None, None, None, 31.71, None, None, None),
}

# The same four accuracies on ImageNet-100-LT.
TABLE5 = {
    "Kukleva et al.": (None, None, 45.3, None),
    "DySTreSS": (None, None, 46.1, None),
}

# Tables 6 and 7: 1-NN and 10-NN accuracy on CIFAR-10-LT, and on CIFAR-100-LT.
TABLE6 = {
    "SimCLR": (57.12, 55.29),
    "DySTreSS": (58.36, 56.40),
    "DySTreSS*": (58.34, 56.54),
}
TABLE7 = {
    "SimCLR": (28.27, 26.18),
    "DySTreSS": (29.43, 27.10),
    "DySTreSS*": (28.82, 27.32),
}

# Accuracy after fine-tuning, in the order of the tasks, which are named after the data sets.
TABLE11_TASKS = {
    "MURA": "mura", "Chaoyang": "chaoyang", "ISIC2016": "isic2016", "MHIST": "mhist", "CIFAR-10": "cifar10",
    "CIFAR-100": "cifar100", "Flowers": "flowers102",
}  # fmt: skip
TABLE11 = {
    "SimCLR": (81.81, 83.22, 85.49, 83.62, 96.93, 82.99, 93.82),
    "DCL (old form)": (81.70, 83.12, 86.02, 85.26, 97.09, 83.03, 94.11),
    "DySTreSS": (82.27, 83.26, 85.75, 83.98, 97.14, 83.96, 96.76),
    "supervised": (82.10, 83.50, 85.50, 86.90, 97.50, 86.40, 97.60),
    "scratch": (None,) * 7,  # not in the paper
}

# STS correlations and transfer accuracies in the order of TABLE12_TASKS, which maps headings to names of scores. Rows are
# named τ_min–τ_max, Δs.
TABLE12_TASKS = {
    "STS12": "sts12", "STS13": "sts13", "STS14": "sts14", "STS15": "sts15", "STS16": "sts16", "STS-B": "stsb",
    "SICK-R": "sickr", "STS-average": "sts_mean", "MR": "mr", "CR": "cr", "SUBJ": "subj", "MPQA": "mpqa", "SST2": "sst2",
    "TREC": "trec", "MRPC": "mrpc", "transfer-average": "transfer_mean",
}  # fmt: skip
TABLE12 = {
    "SimCSE": (
        *(65.10, 80.32, 71.42, 80.51, 77.80, 76.47, 70.69, 74.62),
        *(80.42, 85.80, 94.13, 88.66, 85.17, 87.40, 72.29, 84.84),
    ),
    "MACL": (
        *(67.49, 81.55, 73.21, 80.97, 77.52, 76.54, 70.87, 75.45),
        *(80.50, 85.41, 94.20, 89.22, 85.06, 90.40, 75.59, 85.77),
    ),
    "0.03–0.05": (
        *(68.00, 81.58, 73.44, 80.33, 77.65, 76.24, 70.98, 75.46),
        *(81.30, 87.10, 94.79, 89.15, 86.16, 88.20, 72.35, 85.58),
    ),
    "0.03–0.05, -0.2": (
        *(70.19, 81.61, 73.89, 81.91, 77.36, 77.06, 70.01, 76.00),
        *(81.72, 86.76, 94.34, 88.31, 86.33, 88.00, 73.74, 85.60),
    ),
    "0.03–0.05, -0.4": (
        *(69.34, 81.76, 73.51, 81.61, 77.39, 76.67, 71.53, 75.96),
        *(81.69, 87.28, 94.80, 89.29, 85.83, 91.20, 72.93, 86.15),
    ),
    "0.03–0.05, -0.6": (
        *(69.65, 79.18, 72.37, 80.79, 76.83, 75.59, 71.43, 75.12),
        *(81.62, 86.68, 94.74, 88.75, 86.71, 90.40, 75.30, 86.31),
    ),
    "0.02–0.05, -0.4": (
        *(69.17, 81.69, 73.73, 81.38, 77.75, 76.19, 70.98, 75.84),
        *(81.59, 86.99, 94.45, 89.48, 86.66, 87.80, 74.90, 85.98),
    ),
    "0.05–0.07, -0.4": (
        *(69.02, 80.61, 73.81, 81.39, 79.75, 77.97, 72.05, 76.37),
        *(80.69, 85.94, 94.27, 89.16, 84.84, 89.20, 74.61, 85.53),
    ),
    "0.04–0.05, -0.4": (
        *(69.68, 80.33, 74.27, 80.55, 76.89, 75.95, 70.82, 75.50),
        *(81.02, 86.23, 94.97, 88.86, 85.17, 89.80, 73.22, 85.61),
    ),
    "before training": (None,) * 16,  # not in the paper
}

# U, alignment, inter-class U and accuracy on CIFAR-10, then the same on CIFAR-100.
TABLE13 = {
    "SimCLR": (-2.2135, 1.5784, -0.5194, 83.65, -2.2556, 1.4661, -0.5246, 52.32),
    "MoCo v2": (-2.1929, 1.47393, -0.5094, 83.67, -2.2202, 1.4444, -0.5364, 54.01),
    "DCLW (old form)": (-2.5482, 1.5632, -0.5349, 84.02, -2.6865, 1.5425, -0.6405, 55.87),
    "DCL (old form)": (-2.7717, 1.6181, -0.5524, 84.47, -2.8314, 1.5723, -0.6792, 56.02),
    "DySTreSS": (-2.8430, 1.6310, -0.5797, 85.83, -2.8169, 1.5408, -0.7657, 56.72),
}

# The same four quantities on ImageNet-1K.
TABLE13_IMAGENET = {
    "SimCLR": (-2.9084, 1.5253, -0.8739, 63.2),
    "DCLW (old form)": (-3.0137, 1.5295, -0.9544, 64.2),
    "DCL (old form)": (-3.0786, 1.5335, -1.0053, 65.1),
    "DySTreSS": (-3.0596, 1.5278, -1.0015, 65.2),
}

# Tables 14 and 15, ImageNet-100: 20-NN top-1 and top-5, linear top-1 and top-5.
TABLE14 = {
    "0.07–0.1": (67.18, 87.82, 77.28, 94.16),
    "0.07–0.5": (67.88, 88.22, 76.34, 93.72),
    "0.07–0.2": (71.46, 89.42, 78.46, 94.4),
    "0.1–0.2": (72.00, 89.76, 78.76, 94.7),
}
TABLE15 = {
    "Δs = 0": (71.66, 90.16, 78.46, 94.86),
    "Δs = 0.2": (71.58, 89.14, 78.56, 94.38),
    "Δs = 0.4": (71.58, 89.58, 78.46, 94.54),
    "Δs = -0.2": (72.38, 89.99, 78.78, 94.59),
    "Δs = -0.4": (71.58, 90.16, 78.82, 94.76),
}
