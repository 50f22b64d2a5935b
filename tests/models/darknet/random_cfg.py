"""Random sound networks with every kind of section, small enough for hundreds of examples."""

import random

from tests.models.darknet.cfgs import cfg_text
from tests.models.darknet.oracle import ACTIVATIONS, Sections


class RandomCfg:
    """A random sound network of few small layers; the same for the same ``seed``."""

    def __init__(self, seed: int, layers: int = 8) -> None:
        self._rng = random.Random(seed)
        rng = self._rng
        side = rng.choice((8, 12, 16))
        self._shapes: list[tuple[int, int, int]] = []
        self._image = (rng.choice((1, 3, 4)), side, rng.choice((side, side + 4)))
        channels, height, width = self._image
        net = {"width": str(width), "height": str(height), "channels": str(channels)}
        self.sections: Sections = [("net", net)]
        kinds = (self._conv, self._conv, self._maxpool, self._route, self._shortcut, self._rest)
        self._conv()
        for _ in range(rng.randrange(layers)):
            rng.choice(kinds)()
        self._end()

    @property
    def text(self) -> str:
        return cfg_text(self.sections)

    def _last(self) -> tuple[int, int, int]:
        return self._shapes[-1] if self._shapes else self._image

    def _add(self, kind: str, shape: tuple[int, int, int], **options: object) -> None:
        """Add a section unless its output would be empty or large."""
        if min(shape) > 0 and max(shape) <= 64:
            self.sections.append((kind, {key: str(value) for key, value in options.items()}))
            self._shapes.append(shape)

    def _activation(self) -> str:
        return self._rng.choice([*ACTIVATIONS, "leaky", "mish", "relu"])

    def _conv(self) -> None:
        rng = self._rng
        c, h, w = self._last()
        size, filters = rng.choice((1, 1, 2, 3, 3, 5)), rng.randint(1, 8)
        groups = 1
        if rng.random() < 0.3:
            groups, filters = c, c * rng.randint(1, 2)
        options: dict[str, object] = {"filters": filters, "size": size}
        if groups > 1:
            options["groups"] = groups
        padding = size // 2
        if rng.random() < 0.7:
            options["pad"] = 1
            if size == 3 and rng.random() < 0.2:
                options["dilation"] = 2
        else:
            padding = options["padding"] = rng.randint(0, padding)
        down = across = options["stride"] = rng.choice((1, 1, 2))
        if rng.random() < 0.1:
            across = options["stride_x"] = 3 - down
            options["stride_y"] = down
        if rng.random() < 0.5:
            options["batch_normalize"] = 1
        options["activation"] = self._activation()
        if size > h + 2 * padding or size > w + 2 * padding:
            return
        shape = (
            filters,
            (h + 2 * padding - size) // down + 1,
            (w + 2 * padding - size) // across + 1,
        )
        self._add("convolutional", shape, **options)

    def _maxpool(self) -> None:
        rng = self._rng
        c, h, w = self._last()
        if rng.random() < 0.2:
            kept = rng.choice([part for part in range(1, c + 1) if c % part == 0])
            self._add("maxpool", (kept, h, w), maxpool_depth=1, out_channels=kept)
            return
        size, stride = rng.choice((2, 3, 5)), rng.choice((1, 2))
        padding = size - 1
        options: dict[str, object] = {"size": size, "stride": stride}
        if rng.random() < 0.3:
            padding = options["padding"] = rng.randint(0, size - 1)
        if size <= min(h, w) + padding:
            rows, columns = ((n + padding - size) // stride + 1 for n in (h, w))
            self._add("maxpool", (c, rows, columns), **options)

    def _earlier(self, count: int, *, same_channels: bool = False) -> list[int]:
        """Return up to ``count`` layers whose maps have the size of the last one's."""
        first = 0 if same_channels else 1
        last = self._last()[first:]
        fitting = [i for i, shape in enumerate(self._shapes) if shape[first:] == last]
        return self._rng.choices(fitting, k=count)

    def _reference(self, index: int) -> int:
        return self._rng.choice((index, index - len(self._shapes)))

    def _route(self) -> None:
        chosen = self._earlier(self._rng.randint(1, 3))
        channels = [self._shapes[i][0] for i in chosen]
        layers = ",".join(str(self._reference(i)) for i in chosen)
        _, h, w = self._last()
        if all(c % 2 == 0 for c in channels) and self._rng.random() < 0.5:
            shape = (sum(channels) // 2, h, w)
            self._add("route", shape, layers=layers, groups=2, group_id=self._rng.randrange(2))
        else:
            self._add("route", (sum(channels), h, w), layers=layers)

    def _shortcut(self) -> None:
        rng = self._rng
        weighted = rng.random() < 0.5
        chosen = self._earlier(rng.randint(1, 3) if weighted else 1, same_channels=weighted)
        options: dict[str, object] = {"from": ",".join(str(self._reference(i)) for i in chosen)}
        if weighted and rng.random() < 0.8:
            options["weights_type"] = rng.choice(("per_feature", "per_channel", "per_layer"))
            options["weights_normalization"] = rng.choice(("none", "relu", "softmax"))
        options["activation"] = self._activation()
        self._add("shortcut", self._last(), **options)

    def _rest(self) -> None:
        c, h, w = self._last()
        match self._rng.randrange(6):
            case 0:
                self._add("upsample", (c, 2 * h, 2 * w), stride=2, scale=self._rng.choice((1, 0.5)))
            case 1 if h % 2 == w % 2 == c % 4 == 0:
                self._add("reorg", (4 * c, h // 2, w // 2), stride=2)
            case 2:
                source = self._reference(self._earlier(1, same_channels=True)[0])
                self._add("sam", (c, h, w), **{"from": source, "activation": self._activation()})
            case 3:
                self._add("avgpool", (c, 1, 1))
                self._add("scale_channels", (c, h, w), **{"from": -2})
            case 4:
                self._add("dropout", (c, h, w), probability=0.5)
            case _:
                self._conv()

    def _end(self) -> None:
        rng = self._rng
        c = self._last()[0]
        match rng.randrange(4):
            case 0:
                self._add("avgpool", (c, 1, 1))
                self._add("softmax", (c, 1, 1), groups=c if rng.random() < 0.2 else 1)
                self.sections.append(("cost", {"type": "sse"}))
            case 1:
                self._connected(2)
            case 2:
                anchors = rng.randint(1, 3)
                self._head("yolo", anchors, mask=",".join(map(str, range(anchors))))
            case _:
                self._head("region", rng.randint(1, 3), softmax=1)

    def _connected(self, count: int) -> None:
        for _ in range(count):
            output = self._rng.randint(2, 12)
            normalize = self._rng.randrange(2)
            options = {"output": output, "activation": self._activation()}
            self._add("connected", (output, 1, 1), batch_normalize=normalize, **options)

    def _head(self, kind: str, anchors: int, **options: object) -> None:
        _, h, w = self._last()
        classes = self._rng.randint(1, 4)
        filters = anchors * (5 + classes)
        self._add("convolutional", (filters, h, w), filters=filters, size=1, activation="linear")
        pairs = ",".join(f"{8 + i},{9 + i}" for i in range(anchors))
        self._add(kind, (filters, h, w), anchors=pairs, num=anchors, classes=classes, **options)
