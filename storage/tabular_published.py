"""Published data sets' formats: the same columns in every file, and a label that is known."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .errors import BadInputError
from .layout import Average, Roles, listed


@dataclass(frozen=True, slots=True)
class Gaps:
    """How a published data set's files tell that a row is none or lacks values."""

    missing: bytes
    """Stands for a missing feature: rows with one among the features that are read are skipped."""
    dummy: bytes
    """A first row of nothing but this is none."""


@dataclass(frozen=True, slots=True)
class Published:
    """The columns of a published data set's files."""

    columns: tuple[str, ...]
    label: str | None
    """The label's column; None where the label is an average."""
    label_values: tuple[float, ...] = ()
    """The labels allowed; empty: any finite number."""
    averages: tuple[Average, ...] = ()
    """The labels that can be chosen where there is no label column; the first if none is."""
    header: bool = False
    """Whether the first line names the columns."""
    otherwise: str = ", or use --format csv --no-header"
    """How to read the file as any other table; empty where it is none."""
    subject: str | None = None
    """The column that can say whose a row is."""
    unread: tuple[str, ...] = ()
    """Columns that are no features, nor the label."""
    gaps: Gaps | None = None
    """Where rows may be incomplete."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the labels that can be chosen."""
        return (*((self.label,) if self.label else ()), *(one.name for one in self.averages))

    @property
    def unlabelled(self) -> tuple[str, ...]:
        """The columns without those that make a label."""
        taken = {self.label, *(name for one in self.averages for name in one.columns)}
        return tuple(name for name in self.columns if name not in taken)

    def roles(self, format: str, roles: Roles) -> Roles:
        """Return the columns' roles with the label, given what the user wants of them.

        Raises BadInputError for another label or subject, or for categories.
        """
        if roles.label not in (None, *self.labels):
            several = len(self.labels) > 1
            raise BadInputError(
                f"the label{'s' if several else ''} of {format} {'are' if several else 'is'} "
                f"{listed(self.labels)}, not {roles.label!r}; leave --label out{self.otherwise}"
            )
        if self.subject is not None and roles.subject not in (None, self.subject):
            raise BadInputError(
                f"the subject of {format} is {self.subject!r}, not {roles.subject!r}; "
                f"name that one or leave --subject out{self.otherwise}"
            )
        subject = roles.subject if self.subject is None else None
        for name, option in ((subject, "--subject"), (roles.one_hot, "--one-hot")):
            if name:
                raise BadInputError(
                    f"format {format} has no column for {option}; leave it out{self.otherwise}"
                )
        unread = (name for name in self.unread if name not in (roles.subject, *roles.drop))
        roles = replace(roles, drop=(*roles.drop, *unread))
        if self.label is not None:
            return replace(roles, label=self.label, label_values=self.label_values)
        chosen = {one.name: one for one in self.averages}[roles.label or self.labels[0]]
        return replace(roles, label=None, average=chosen)


_HIGGS = Published(
    columns=(
        "label",
        *("lepton_pT", "lepton_eta", "lepton_phi"),
        *("missing_energy_magnitude", "missing_energy_phi"),
        *(f"jet_{i}_{what}" for i in range(1, 5) for what in ("pt", "eta", "phi", "btag")),
        *("m_jj", "m_jjj", "m_lv", "m_jlv", "m_bb", "m_wbb", "m_wwbb"),
    ),
    label="label",
    label_values=(0.0, 1.0),
)
"""UCI's HIGGS.csv: 1 = signal, 0 = background."""

_COVTYPE = Published(
    columns=(
        *("Elevation", "Aspect", "Slope"),
        *("Horizontal_Distance_To_Hydrology", "Vertical_Distance_To_Hydrology"),
        "Horizontal_Distance_To_Roadways",
        *("Hillshade_9am", "Hillshade_Noon", "Hillshade_3pm"),
        "Horizontal_Distance_To_Fire_Points",
        *(f"Wilderness_Area{i}" for i in range(1, 5)),
        *(f"Soil_Type{i}" for i in range(1, 41)),
        "Cover_Type",
    ),
    label="Cover_Type",
    label_values=tuple(float(i) for i in range(1, 8)),
)
"""UCI's covtype.data: seven kinds of forest."""

_RUNS = tuple(f"Run{i} (ms)" for i in range(1, 5))
_SGEMM = Published(
    columns=(
        *("MWG", "NWG", "KWG", "MDIMC", "NDIMC", "MDIMA", "NDIMB", "KWI", "VWM", "VWN"),
        *("STRM", "STRN", "SA", "SB"),
        *_RUNS,
    ),
    label=None,
    averages=(
        Average("log_mean_run_ms", _RUNS, logarithm=True),
        Average("mean_run_ms", _RUNS, logarithm=False),
    ),
    header=True,
    otherwise=", or use --format csv",
)
"""UCI's sgemm_product_dataset.zip or the csv file in it: run times of a GPU kernel."""

_HEARTBEAT = Published(
    columns=(*(f"sample_{i}" for i in range(187)), "class"),
    label="class",
    label_values=tuple(float(i) for i in range(5)),
)
"""Kaggle's mitbih_train.csv and mitbih_test.csv: five kinds of heartbeats, 125 samples a second."""

_CELLTYPE = Published(
    columns=(*(f"pc{i}" for i in range(10)), "cell_type"),
    label="cell_type",
    label_values=tuple(float(i) for i in range(4)),
    header=True,
    otherwise=", or use --format csv",
)
"""The k-means paper's Celltype: ten principal components of gene expression, four kinds of cells."""

_MARKERS = tuple(tuple(f"{axis}{i}" for axis in "XYZ") for i in range(12))
_MARKERS_READ = 5
_POSTURES = Published(
    columns=("Class", "User", *(axis for marker in _MARKERS for axis in marker)),
    label="Class",
    label_values=tuple(float(i) for i in range(1, 6)),
    header=True,
    otherwise=", or use --format csv",
    subject="User",
    unread=("User", *(axis for marker in _MARKERS[_MARKERS_READ:] for axis in marker)),
    gaps=Gaps(missing=b"?", dummy=b"0"),
)
"""UCI's Postures.csv (MoCap Hand Postures): five postures, by the places in mm of up to twelve markers.

As in the k-means paper the first five markers are the features, and rows that lack one of them are
left out.
"""

PUBLISHED = {
    "higgs": _HIGGS,
    "covtype": _COVTYPE,
    "sgemm": _SGEMM,
    "heartbeat": _HEARTBEAT,
    "celltype": _CELLTYPE,
    "postures": _POSTURES,
}
"""The formats of text files, by name."""
