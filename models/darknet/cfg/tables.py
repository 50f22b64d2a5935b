"""Which options each section of a cfg may have: every option of Darknet is in one of these tables.

Names are those of AlexeyAB's parser (``parse_network_cfg`` and the functions that it calls).
"""

#: Other names of sections.
ALIASES = {
    "network": "net",
    "conv": "convolutional",
    "max": "maxpool",
    "avg": "avgpool",
    "conn": "connected",
    "soft": "softmax",
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Options that decide what a layer computes or how its output is read.
USED = {
    "net": _words("width height channels"),
    "convolutional": _words(
        "filters size stride stride_x stride_y pad padding dilation groups batch_normalize activation"
    ),
    "maxpool": _words("size stride stride_x stride_y padding maxpool_depth out_channels"),
    "avgpool": _words(""),
    "upsample": _words("stride scale"),
    "reorg": _words("stride"),
    "crop": _words("crop_width crop_height noadjust"),
    "route": _words("layers groups group_id"),
    "shortcut": _words("from activation weights_type weights_normalization"),
    "scale_channels": _words("from scale_wh activation"),
    "sam": _words("from activation"),
    "connected": _words("output batch_normalize activation"),
    "softmax": _words("groups temperature"),
    "dropout": _words(""),
    "cost": _words(""),
    "yolo": _words("mask anchors num classes scale_x_y new_coords nms_kind beta_nms"),
    "region": _words("anchors num classes softmax"),
}

_DETECTOR_TRAINING = _words(
    "jitter resize random max max_delta ignore_thresh truth_thresh iou_thresh iou_thresh_kind "
    "iou_loss iou_normalizer obj_normalizer cls_normalizer delta_normalizer objectness_smooth "
    "label_smooth_eps counters_per_class focal_loss show_details track_history_size sim_thresh "
    "dets_for_track dets_for_show track_ciou_norm"
)

# Training, augmentation, and how Darknet itself runs.
_IGNORED = {
    "net": _words(
        "batch subdivisions max_batches learning_rate learning_rate_min momentum decay policy burn_in "
        "power step steps scale scales seq_scales gamma sgdr_cycle sgdr_mult adam B1 B2 eps angle "
        "aspect saturation exposure hue flip blur gaussian_noise max_crop min_crop max_ratio min_ratio "
        "center mosaic mosaic_bound mixup cutmix letter_box label_smooth_eps resize_step "
        "augment_speed sequential_subdivisions try_fix_nan loss_scale dynamic_minibatch "
        "optimized_memory workspace_size_limit_MB adversarial_lr attention max_chart_loss "
        "num_sigmas_reject_badlabels badlabels_rejection_percentage weights_reject_freq "
        "equidistant_point ema_alpha use_cuda_graph contrastive contrastive_jit_flip "
        "contrastive_color unsupervised track show_receptive_field"
    ),
    "convolutional": _words("grad_centr reverse angle stream wait_stream assisted_excitation"),
    "maxpool": _words("maxpool_zero_nonmax"),
    "crop": _words("flip angle saturation exposure shift"),
    "route": _words("stream wait_stream"),
    "softmax": _words("noloss"),
    "dropout": _words("probability dropblock dropblock_size_rel dropblock_size_abs"),
    "cost": _words("type scale ratio"),
    "yolo": _DETECTOR_TRAINING,
    "region": _DETECTOR_TRAINING
    | _words(
        "bias_match rescore thresh classfix absolute log sqrt "
        "coord_scale object_scale noobject_scale mask_scale class_scale"
    ),
}

# Options that every section but [net] may have.
_IGNORED_ANYWHERE = _words(
    "stopbackward train_only_bn dont_update burnin_update onlyforward learning_rate smooth clip"
)

#: Options that would change what a layer computes, and the one value at which they do not.
NEUTRAL = {
    "net": {"time_steps": "1"},
    "convolutional": dict.fromkeys(
        _words(
            "antialiasing cbn binary xnor bin_output sway rotate stretch stretch_sway flipped dot "
            "coordconv"
        ),
        "0",
    ),
    "maxpool": {"antialiasing": "0"},
    "reorg": {"reverse": "0"},
    "softmax": {"spatial": "0"},
    "region": {"coords": "4", "background": "0"},
}

# What would change the weights file.
_NEUTRAL_ANYWHERE = {"dontload": "0", "dontloadscales": "0"}


def canonical(kind: str) -> str:
    """Return the usual name of a section."""
    return ALIASES.get(kind, kind)


def is_ignored(kind: str, option: str) -> bool:
    """Tell whether ``option`` has no part in inference."""
    kind = canonical(kind)
    anywhere = kind != "net" and option in _IGNORED_ANYWHERE
    return anywhere or option in _IGNORED.get(kind, ())


def neutral(kind: str, option: str) -> str | None:
    """Return the one value that ``option`` may have, None where others are fine or it is unknown."""
    value = NEUTRAL.get(kind, {}).get(option)
    return _NEUTRAL_ANYWHERE.get(option) if value is None and kind != "net" else value
