"""Rights of people, the protections that hold, and what a person must fill in."""

from __future__ import annotations

from collections.abc import Iterator

from fedloop_clients.assessment.document import Blank, Measure, Rights
from fedloop_clients.home import SiteHome
from fedloop_core.task.document import Task

__all__ = ["blanks_of", "measures_of", "rights_of"]


def rights_of(home: SiteHome, task: Task) -> Rights:
    """What people at this site can ask for, and what it changes.

    Raises:
        NotSetUp: the site has no secret yet.
        StorageError: the list of erased people cannot be read.
    """
    people = home.erased().state().people if home.erased_file.exists() else ()
    keeps = (
        f"Models that were made before keep what they have learnt: of one unit at most epsilon {task.privacy.epsilon:g} for each run."
        if task.privacy.private
        else "Models that were made before keep what they have learnt, and no number bounds how much of one person that is."
    )
    return Rights(
        people_erased=len(people),
        first_erased_unix=min((person.unix for person in people), default=None),
        sentences=(
            "A person who objects or withdraws consent is left out of every run that begins afterwards: `fedloop site erase`.",
            "A run that is under way keeps the rows that it began with; `fedloop site pause` ends its training at the next step.",
            keeps,
            "What was spent on a person's privacy stays spent, and is kept in the ledger without a name.",
            "The site withdraws as a whole with `fedloop site leave`: nothing more leaves it.",
            "Access and correction are the site's own: fedloop keeps no copy of the rows.",
        ),
    )


def measures_of(home: SiteHome, task: Task) -> Iterator[Measure]:
    """The protections, and whether each holds for this task here."""
    policy = home.settings.policy
    private = task.privacy.private
    yield Measure(
        name="differential privacy at the site",
        holds=private,
        how="noise is added before anything leaves" if private else "the task trains without it",
    )
    yield Measure(
        name="budget for life",
        holds=home.settings.budget.training.epsilon != float("inf"),
        how="a signed ledger refuses what the blocks of rows do not hold",
    )
    yield Measure(
        name="secure aggregation",
        holds=task.secure,
        how="updates leave masked, and only their sum can be read" if task.secure else "the task does not ask for it",
    )
    yield Measure(
        name="noise for whole sites at the coordinator",
        holds=task.central_privacy is not None,
        how="rests on the coordinator" if task.central_privacy is not None else "the task does not ask for it",
    )
    yield Measure(
        name="encryption on the way", holds=True, how="TLS to the coordinator; each side proves by its key who it is"
    )
    yield Measure(
        name="signed instructions and answers",
        holds=True,
        how="the site acts only on what the coordinator's pinned key has signed; each answer is signed by the site's key",
    )
    yield Measure(
        name="isolation",
        holds=True,
        how="rows, keys and ledger are read by the site's daemon alone; Flower's processes see signed messages, and a user of its own for "
        "each process when the site is started as root",
    )
    yield Measure(
        name="purposes limited by the site",
        holds=policy.purposes is not None,
        how=f"policy.purposes: {', '.join(policy.purposes)}"
        if policy.purposes is not None
        else "policy.purposes is not set",
    )
    yield Measure(
        name="a person approves runs",
        holds=policy.approval != "none",
        how=f"policy.approval is {policy.approval}",
    )
    yield Measure(name="encryption at rest", holds=False, how="fedloop has none; the disk's own may be used")


def blanks_of(task: Task) -> tuple[Blank, ...]:
    """What fedloop cannot know."""
    listed = [
        ("controller", "name and address of the controller, and of joint controllers where there are some"),
        ("contact", "data protection officer and contact for the people concerned"),
        (
            "legal basis",
            "legal basis of the processing, and of special categories of data (for GDPR: articles 6 and 9)",
        ),
        ("necessity", "why this processing is necessary and in proportion to its purpose"),
        (
            "people",
            "whose data they are, about how many people, and whether children or dependent people are among them",
        ),
        ("categories", "which columns hold special categories of data, such as health"),
        ("source", "where the data come from, and how people were informed"),
        (
            "recipients",
            "legal names and countries of the coordinator's operator and of the other sites; contracts with them",
        ),
        ("transfers", "transfers to other countries, and their safeguards"),
        ("retention", "how long the data file and backups are kept"),
        ("consultation", "views of the people concerned, and of the data protection officer"),
        ("risk", "how likely and how severe the risks below are for people, and what is decided about them"),
        ("decision", "who decides, when, and when this assessment is looked at again"),
    ]
    if not task.purpose_name:
        listed.insert(0, ("purpose", "the purpose: the task names none"))
    return tuple(Blank(section=section, what=what) for section, what in listed)
