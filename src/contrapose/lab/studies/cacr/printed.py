"""The numbers in the CACR paper, by table. Accuracies are in %; None stands for a number that the paper does not give."""

from __future__ import annotations

METHODS = ("CL", "AU-CL", "HN-CL", "CACR (K=1)", "CMC (K=4)", "CACR (K=4)")


# Tables 2, 3, 8, 9 and 15: linear accuracy of each of the six METHODS, by data set.
TABLE8 = {
    "CIFAR-10": (83.47, 83.39, 83.67, 83.73, 85.54, 86.54),
    "CIFAR-100": (55.41, 55.31, 55.87, 56.52, 58.64, 59.41),
    "STL-10": (83.89, 84.43, 83.27, 84.51, 84.50, 85.59),
}
# Tables 2 and 8 have the same numbers for regular CIFAR, except for a misprint in Table 2; see the study's note.
TABLE2 = {
    "CIFAR-10": TABLE8["CIFAR-10"],
    "CIFAR-100": TABLE8["CIFAR-100"],
    "CIFAR-10, linear": (79.88, 80.25, 80.51, 80.46, 82.20, 83.62),
    "CIFAR-100, linear": (52.29, 52.74, 52.72, 54.12, 55.38, 56.91),
    "CIFAR-10, exponential": (71.74, 71.62, 72.74, 73.02, 74.77, 75.89),
    "CIFAR-100, exponential": (43.29, 44.38, 45.13, 46.59, 48.87, 50.17),
}
TABLE3 = {
    "CIFAR-10": (83.61, 83.57, 83.72, 83.86, 85.54, 86.54),
    "CIFAR-100": (55.41, 56.07, 55.80, 56.41, 58.64, 59.41),
    "STL-10": (83.49, 83.43, 82.41, 84.56, 84.50, 85.59),
}
TABLE9 = {
    "CIFAR-10": (88.70, 88.63, 89.02, 90.97, 90.05, 92.89),
    "CIFAR-100": (62.00, 62.57, 62.96, 62.98, 65.19, 66.52),
    "STL-10": (84.60, 83.81, 84.29, 88.42, 91.40, 93.04),
}
TABLE15 = {
    "ImageNet-100": (77.54, 77.66, 76.34, 79.40, 78.84, 80.46),
    "ImageNet-1K": (67.50, 67.69, 67.41, 68.40, 69.45, 70.35),
}

# Tables 4 to 7 and 16: a number for each column, by method.
TABLE4_COLUMNS = ("ImageNet-1K",)
TABLE4 = {
    "Barlow Twins": (73.2,),
    "SimSiam": (71.3,),
    "SwAV": (71.8,),
    "SwAV (multi-crop)": (75.3,),
    "BYOL": (74.3,),
    "SimCLR": (71.7,),
    "MoCov2": (72.2,),
    "FNC (multi-crop)": (74.4,),
    "CACR (K=1)": (73.7,),
    "CACR (K=4)": (74.4,),
}
TABLE5_COLUMNS = ("ImageNet-1K", "Webvision v1", "ImageNet-22K")
TABLE5 = {
    "MoCov2": (67.5, 62.3, 59.9),
    "CACR (K=1)": (69.5, 64.5, 61.9),
    "CACR (K=4)": (70.4, 66.1, 64.5),
}
TABLE6_COLUMNS = ("Caltech101", "CIFAR10", "CIFAR100", "Country211", "DescriTextures", "EuroSAT", "FER2013", "FGVC Aircraft",
             "Food101", "GTSRB", "HatefulMemes", "KITTI", "MNIST", "Oxford Flowers", "Oxford Pets", "PatchCamelyon",
             "Rendered SST2", "RESISC45", "Stanford Cars", "VOC2007", "mean", "wins")  # fmt: skip
TABLE6 = {
    "MoCov3, fine-tuned": (73.7, 70.3, 17.4, 2.3, 45.6, 60.0, 13.5, 7.2, 27.6, 16.5, 50.8, 43.5, 18.1, 65.7, 77.1, 50.9, 50.7,
                           58.2, 11.2, 25.7, 39.3, 4),
    "CACR, fine-tuned": (84.8, 67.6, 24.3, 2.5, 51.2, 73.6, 23.0, 21.4, 17.0, 23.7, 51.8, 45.4, 44.0, 81.1, 79.4, 58.4, 51.2,
                         49.1, 10.8, 69.0, 46.5, 16),
    "MoCov3, linear": (80.8, 78.5, 60.5, 4.8, 57.1, 77.1, 20.5, 11.8, 36.6, 31.4, 50.7, 46.7, 64.1, 79.5, 76.2, 54.7, 50.0,
                       61.1, 13.4, 47.9, 50.2, 4),
    "CACR, linear": (79.3, 85.4, 62.9, 4.7, 57.1, 76.1, 18.3, 21.6, 40.9, 32.9, 50.9, 50.3, 69.2, 84.6, 81.2, 56.9, 51.8,
                     61.7, 21.1, 74.4, 54.1, 15),
}  # fmt: skip
TABLE7_COLUMNS = tuple(
    f"{task} {ap} ImageNet-1K" for task in ("VOC", "COCO", "COCO mask") for ap in ("AP50", "AP", "AP75")
)
TABLE7 = {
    "scratch": (60.2, 33.8, 33.1, 44.0, 26.4, 27.8, 46.9, 29.3, 30.8),
    "supervised": (81.3, 53.5, 58.8, 58.2, 38.2, 41.2, 54.7, 33.3, 35.2),
    "BYOL": (81.4, 55.3, 61.1, 57.8, 37.9, 40.9, 54.3, 33.2, 35.0),
    "SwAV": (81.5, 55.4, 61.4, 57.6, 37.6, 40.3, 54.2, 33.1, 35.1),
    "SimSiam": (82.4, 57.0, 63.7, 59.3, 39.2, 42.1, 56.0, 34.4, 36.7),
    "Barlow Twins": (82.6, 56.8, 63.4, 59.0, 39.2, 42.5, 56.0, 34.3, 36.5),
    "SimCLR": (81.8, 55.5, 61.4, 57.7, 37.9, 40.9, 54.6, 33.3, 35.3),
    "MoCov2": (82.3, 57.0, 63.3, 58.8, 39.2, 42.5, 55.5, 34.3, 36.6),
    "AU-CL": (82.5, 57.2, 63.8, 58.4, 39.1, 42.2, 55.7, 34.1, 36.3),
    "CACR (K=1)": (82.8, 57.8, 64.2, 58.9, 39.3, 42.5, 55.6, 34.4, 36.7),
    "CACR (K=4)": (82.8, 57.9, 64.9, 59.8, 40.0, 42.7, 55.8, 35.0, 37.0),
}
TABLE16_EPOCHS = (100, 200, 400, 800, 1000)
TABLE16 = {
    "BYOL": (66.5, 70.6, 73.2, 74.3, None),
    "Barlow Twins": (None, None, None, None, 73.2),
    "SwAV": (66.5, 69.1, 70.7, 71.8, None),
    "SimSiam": (68.1, 70.0, 70.8, 71.3, None),
    "SimCLR": (66.5, 68.3, 69.8, 70.4, 71.7),
    "MoCov2": (67.4, 69.9, 71.0, 72.2, None),
    "FNC (multi-crop)": (70.4, None, None, None, 74.4),
    "CACR (K=4)": (68.3, 70.4, 73.8, 74.0, 74.4),
}

# Tables 10, 11 and 20: linear accuracy of variants of the objective on CIFAR-10, CIFAR-100 and STL-10.
VARIANT_COLUMNS = ("CIFAR-10", "CIFAR-100", "STL-10")
TABLE10 = {
    "as proposed": (86.48, None, None),
    "π⁺ reversed": (83.91, None, None),
    "π⁻ reversed": (79.46, None, None),
    "both reversed": (74.91, None, None),
}
TABLE11 = {
    "CACR": (85.94, 59.51, 85.59),
    "without π⁺": (85.22, 58.74, 85.06),
    "without π⁻": (78.49, 47.88, 72.94),
    "UAUR": (77.17, 44.24, 71.88),
}
TABLE20 = {
    "K = 1, Euclidean": (83.73, 56.21, 83.55),
    "K = 1, RBF": (83.08, 55.90, 84.20),
    "K = 4, Euclidean": (85.94, 59.41, 85.59),
    "K = 4, RBF": (86.20, 58.81, 85.80),
}

# Tables 12 and 13: linear accuracy at each t⁺ or t⁻, by data set.
T_VALUES = (0.5, 0.7, 0.9, 1.0, 2.0, 3.0)
TABLE12 = {
    "CIFAR-10": (86.07, 85.78, 85.90, 86.54, 84.85, 84.76),
    "CIFAR-100": (59.47, 59.61, 59.41, 59.41, 57.82, 57.55),
    "STL-10": (85.90, 85.91, 85.81, 85.59, 85.65, 85.14),
}
TABLE13_K1 = {
    "CIFAR-10": (81.66, 82.40, 83.07, 82.74, 83.73, 83.11),
    "CIFAR-100": (51.42, 52.81, 53.36, 54.20, 56.21, 56.52),
    "STL-10": (80.37, 81.47, 84.46, 82.16, 84.21, 84.51),
}
TABLE13_K4 = {
    "CIFAR-10": (85.67, 86.19, 86.54, 86.41, 85.94, 85.69),
    "CIFAR-100": (58.17, 58.63, 59.37, 59.35, 59.41, 59.31),
    "STL-10": (83.81, 84.42, 84.71, 85.25, 85.59, 85.41),
}

# Seconds per step by number of positives.
TABLE14 = {1: 0.0021, 2: 0.0026, 4: 0.0035, 6: 0.0045, 8: 0.0054, 10: 0.0064}
# Seconds per step with MoCo v2: (row, method whose loss the row uses, views, batch size, seconds).
TABLE17: tuple[tuple[str, str, int, int, float], ...] = (
    ("CL", "CL", 2, 256, 0.837),
    ("AU-CL", "AU-CL", 2, 256, 0.840),
    ("HN-CL", "HN-CL", 2, 256, 0.889),
    ("CACR (K=1)", "CACR (K=1)", 2, 256, 0.871),
    ("CL (K=4)", "CMC (K=4)", 5, 64, 3.550),
    ("CACR (K=2)", "CACR (K=4)", 3, 128, 0.996),
    ("CACR (K=3)", "CACR (K=4)", 4, 64, 1.017),
    ("CACR (K=4)", "CACR (K=4)", 5, 64, 1.342),
)

TABLE18_COLUMNS = tuple(f"{way} {encoder}" for encoder in ("ResNet-50", "ViT-B/16") for way in ("fine-tuned", "linear"))
TABLE18 = {
    "SimCLRv2": (77.2, 71.7, 83.1, 73.9),
    "MoCov3": (77.0, 73.8, 83.2, 76.5),
    "CACR": (78.1, 74.7, 83.4, 76.8),
    "SwAV (multi-crop)": (77.8, 75.3, 82.8, 71.6),
    "CACR (multi-crop)": (78.4, 75.3, 83.4, 77.1),
}
# Zero-shot accuracy on ImageNet-1K after training on image-text pairs.
TABLE19 = {"CLIP": 19.8, "CLIP, reproduced": 19.2, "CACR": 22.7}
