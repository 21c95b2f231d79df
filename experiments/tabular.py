"""Real tables on which defaults are chosen and judged: files NAME.npz in the folder `tabular` of the data.

A file has `x`, (n, p) float32, with categories as indicators and medians where a value was missing, not scaled; `y`; and `task`.
A hash of its name says whether a table may be looked at while defaults are chosen, so that nobody picks the tables that judge them.
"""

from __future__ import annotations

import hashlib
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments import datasets

__all__ = ["CHOOSING", "JUDGING", "NAMES", "Table", "load"]

_SHA256 = {
    "ada": "a95a107c1b351ba2f715df8df0968ae23d05060243602a6198f615db66019933",
    "australian": "46d5a7c0331c931b3fd72252d83460db646d383ae689bc3f6bd5ee8b52ca8742",
    "autoMPG6": "699df96057366d0549a7599f91c7b1e429211d10a3538f77831b9aacb08b4e37",
    "bands": "91c2e437f7793f257477e71323365620e856728403630c5b720276d8a4485e7a",
    "boom_bikes": "47290e563914148b5ebf131ffdabfcf96148bfc53d180990289e4827127bb940",
    "boston": "39e533a4521805378cc558bdb4fe741016982eaecd059c4aa62b392cbc8c8537",
    "bupa": "69302a29ee0c16e7c32aa6534e811e0134596f893a8de742f88e37c176d9e60a",
    "caravan": "4a8028eb6dcb24b1e401aed5da535607d35f72282688730fc0407f053ed07a2c",
    "chess": "b071c888e3a914d2278e4fc2a4f41f19aca3d733ee9fe8fc7ac88dc054abb563",
    "college": "29e6ea9d8a3be3362022797c1337dbf037485b246e51e4ec085c939a76ddfbd2",
    "computers": "ac2a57c2883f5f172f8db7c06b057b1ec9e15cb862486ae677445463c261dc21",
    "cps1985": "9e69cc676285d6a375daf8e1c5a3f800ea15323a81e9c3e00e97433ee539ba36",
    "credit": "3ad22cd392dc938c839a5eb96f08d014fade4828384b131112ebd512cf61eb1d",
    "crx": "5125332167897dd03051c6e9aeb2aa91b192b4bb8eefe3c236baff4847e1fa99",
    "daily_demand": "a2ece085caa355512a2177bfcdb049df81d512f71ba1664a8777546e6fcea73f",
    "default": "eadf390d4d1cbc167b5c1b3a4eca1f1af9972083bafd29f21a3b0f8cbe00e762",
    "excitation_current": "dfb85009237ceb8b89f44c3d6336c6fe9913dbc990c66d41e2fbec9853a6eb11",
    "heart": "af6a57afa57885afdf5369c78cb04f6f5e1ad199bf8539d7f100ff325892f591",
    "houseprices": "892cd8f78bbd4cbf4331a3d2dbfc12cf73643cc5cf7ae1b06cf70187f024e221",
    "housevotes": "b124e10d64ccd06c72d7c2fbb9e6653a3e9baf88978f573c992b68685cb9a35f",
    "ionosphere": "00c775e54eb7668ef07da30a7459fa2317ad6118d09969b25339c04dad813878",
    "kc1": "1b5fdbe75fda4121fe291e10a33a41ef4fbd04ac664ec87c5c63c6bf6b54c6e1",
    "kddcup_land_vs_satan": "540fd3cb572c6b93e1f5cdc1f4ba60fd9a103166aba6566539ab50a8a1b4a476",
    "led7digit": "bdf201fd2060040f05de310566e4e4b19e22265c834df343f7e5421413837c62",
    "mammographic": "29a532262b775d26176df3eee5006f1b6c9b13687bab155d1a2e7147c8630700",
    "marketing": "fa45be06bb2e5591a591c2c6041e7b979009f07af2c080cd47dace8a3ba9b498",
    "mushroom": "4a3501def099957f22d758c0dd0100f335f52cab4ad06576251ea3f6447c6012",
    "oj": "140ddad584d296c64e965ebb1d061206acd4854cf4169262a1aa561ef420a20b",
    "pc1": "5d4f7102b76193f31b71d1d4aaf8895611aefb361e764e235dd17c1518d7f435",
    "pima": "1df1a3dd0b8402f2c254e8cb4fd8e8e4759454eb575c45d2e3d72474e51c2878",
    "plastic": "4a38f0736ddafbea512d2254b251067dd655d3abe8724831ab9a9e9065239f6b",
    "poker_8_9_vs_5": "acf0ed8f92674107a9996138cc6cfd5fe7f5982edfd1bda84c2a8b427a97465a",
    "qsar_aquatic_toxicity": "5b200fc70af1a218d7b3fc96838a7433003ef3e0fcd5aab783335130137bf9b6",
    "saheart": "6fdaa6192bce24192b2f2776430cbf5cd183ffe50a8c3db1a20b6a3bebe8c48f",
    "shuttle_c0_vs_c4": "f700ad96a0c8c6fd1ea784822114b08909aff3dfc8ff80745d6fe22d6c3b710f",
    "slump_test": "ce48a794de6592aea31c0b1b526e225f0e03a5a54683e506c8c35a76bbcbd9b5",
    "spectf": "0a44199857c7a5446211dd95a20ac53ea80d32e9c43ae9793055514289e97cff",
    "sylva": "5843d00eaa84f54fee1049a281c98ed10d4ed0601bc2ec4180c0ed641749a10b",
    "tic-tac-toe": "bcd4ec823ed29cb192f63bf203d48e46a0f1bbfbda8b9ed54c0d5d0e36274057",
    "titanic": "07f1cb3535ad18f231ce0ab72d6518b2d9f93f7729b291cbd92e5b9dbf94f6b7",
    "twonorm": "c0ee680a73a405c7dc31899c589d2208470918afa6c93b073efc9f2a5dc18224",
    "wage": "7d0598fdc5eefb779a99f9eb921c4d282bbe4b864efea1a7f0a7dc2ef1ce9c2e",
    "winequality_white": "fd238b93d5596d708d196f42d55d1e31c42ee0686e498e91bc9b8f8c3139de04",
    "wsn_ale": "08f86dfe9713eea4217b3463bc34e3b8eb62f2cc946d61c17fe8745e7da7af0c",
}
NAMES = tuple(_SHA256)


class Table(NamedTuple):
    """Rows in float64, and real responses or classes numbered from 0."""

    x: NDArray[np.float64]
    y: NDArray[Any]
    classes: bool


def load(name: str) -> Table:
    if name not in NAMES:
        raise ValueError(f"no table {name!r}, the names are: {', '.join(NAMES)}")
    content = datasets.content(datasets.folder("tabular") / f"{name}.npz", _SHA256[name])
    with np.load(BytesIO(content)) as file:
        x, y, classes = file["x"].astype(np.float64), file["y"], str(file["task"]) == "classification"
    return Table(x, np.unique(y, return_inverse=True)[1] if classes else y.astype(np.float64), classes)


def _chooses(name: str) -> bool:
    return hashlib.sha256(name.encode()).digest()[0] % 2 == 0


CHOOSING = tuple(name for name in NAMES if _chooses(name))
JUDGING = tuple(name for name in NAMES if not _chooses(name))
