from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EvaluationRows(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVALUATION_ROWS_UNSPECIFIED: _ClassVar[EvaluationRows]
    EVALUATION_ROWS_ALL: _ClassVar[EvaluationRows]
    EVALUATION_ROWS_ORIGINAL: _ClassVar[EvaluationRows]
    EVALUATION_ROWS_FEEDBACK: _ClassVar[EvaluationRows]
EVALUATION_ROWS_UNSPECIFIED: EvaluationRows
EVALUATION_ROWS_ALL: EvaluationRows
EVALUATION_ROWS_ORIGINAL: EvaluationRows
EVALUATION_ROWS_FEEDBACK: EvaluationRows

class Envelope(_message.Message):
    __slots__ = ("instruction", "signature", "key_id")
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    instruction: bytes
    signature: bytes
    key_id: str
    def __init__(self, instruction: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., key_id: _Optional[str] = ...) -> None: ...

class Instruction(_message.Message):
    __slots__ = ("run_id", "attempt", "round", "site", "task_digest", "arrays_digest", "expires_unix", "protocol", "audit", "ledger_seen", "describe_data", "collect_moments", "train_locally", "sum_derivatives", "evaluate_artifact", "cancel_run", "trust_authorities", "aggregate_securely")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    TASK_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_UNIX_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    LEDGER_SEEN_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_DATA_FIELD_NUMBER: _ClassVar[int]
    COLLECT_MOMENTS_FIELD_NUMBER: _ClassVar[int]
    TRAIN_LOCALLY_FIELD_NUMBER: _ClassVar[int]
    SUM_DERIVATIVES_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    CANCEL_RUN_FIELD_NUMBER: _ClassVar[int]
    TRUST_AUTHORITIES_FIELD_NUMBER: _ClassVar[int]
    AGGREGATE_SECURELY_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    attempt: int
    round: int
    site: str
    task_digest: bytes
    arrays_digest: bytes
    expires_unix: int
    protocol: int
    audit: LogHead
    ledger_seen: LogHead
    describe_data: DescribeData
    collect_moments: CollectMoments
    train_locally: TrainLocally
    sum_derivatives: SumDerivatives
    evaluate_artifact: EvaluateArtifact
    cancel_run: CancelRun
    trust_authorities: TrustAuthorities
    aggregate_securely: AggregateSecurely
    def __init__(self, run_id: _Optional[str] = ..., attempt: _Optional[int] = ..., round: _Optional[int] = ..., site: _Optional[str] = ..., task_digest: _Optional[bytes] = ..., arrays_digest: _Optional[bytes] = ..., expires_unix: _Optional[int] = ..., protocol: _Optional[int] = ..., audit: _Optional[_Union[LogHead, _Mapping]] = ..., ledger_seen: _Optional[_Union[LogHead, _Mapping]] = ..., describe_data: _Optional[_Union[DescribeData, _Mapping]] = ..., collect_moments: _Optional[_Union[CollectMoments, _Mapping]] = ..., train_locally: _Optional[_Union[TrainLocally, _Mapping]] = ..., sum_derivatives: _Optional[_Union[SumDerivatives, _Mapping]] = ..., evaluate_artifact: _Optional[_Union[EvaluateArtifact, _Mapping]] = ..., cancel_run: _Optional[_Union[CancelRun, _Mapping]] = ..., trust_authorities: _Optional[_Union[TrustAuthorities, _Mapping]] = ..., aggregate_securely: _Optional[_Union[AggregateSecurely, _Mapping]] = ...) -> None: ...

class CancelRun(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TrustAuthorities(_message.Message):
    __slots__ = ("certificates",)
    CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    certificates: bytes
    def __init__(self, certificates: _Optional[bytes] = ...) -> None: ...

class DescribeData(_message.Message):
    __slots__ = ("task_document", "fixed_weights")
    TASK_DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    FIXED_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    task_document: bytes
    fixed_weights: bytes
    def __init__(self, task_document: _Optional[bytes] = ..., fixed_weights: _Optional[bytes] = ...) -> None: ...

class CollectMoments(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TrainLocally(_message.Message):
    __slots__ = ("rounds_planned", "evaluate", "shuffle_seed", "fixed_weights")
    ROUNDS_PLANNED_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_SEED_FIELD_NUMBER: _ClassVar[int]
    FIXED_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    rounds_planned: int
    evaluate: bool
    shuffle_seed: int
    fixed_weights: bytes
    def __init__(self, rounds_planned: _Optional[int] = ..., evaluate: _Optional[bool] = ..., shuffle_seed: _Optional[int] = ..., fixed_weights: _Optional[bytes] = ...) -> None: ...

class SumDerivatives(_message.Message):
    __slots__ = ("evaluate",)
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    evaluate: bool
    def __init__(self, evaluate: _Optional[bool] = ...) -> None: ...

class AggregateSecurely(_message.Message):
    __slots__ = ("advertise_keys", "share_keys", "mask_input", "confirm_survivors", "unmask")
    ADVERTISE_KEYS_FIELD_NUMBER: _ClassVar[int]
    SHARE_KEYS_FIELD_NUMBER: _ClassVar[int]
    MASK_INPUT_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    UNMASK_FIELD_NUMBER: _ClassVar[int]
    advertise_keys: bytes
    share_keys: bytes
    mask_input: bytes
    confirm_survivors: bytes
    unmask: bytes
    def __init__(self, advertise_keys: _Optional[bytes] = ..., share_keys: _Optional[bytes] = ..., mask_input: _Optional[bytes] = ..., confirm_survivors: _Optional[bytes] = ..., unmask: _Optional[bytes] = ...) -> None: ...

class SecurelyAggregated(_message.Message):
    __slots__ = ("answer", "advertisement")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    ADVERTISEMENT_FIELD_NUMBER: _ClassVar[int]
    answer: bytes
    advertisement: bytes
    def __init__(self, answer: _Optional[bytes] = ..., advertisement: _Optional[bytes] = ...) -> None: ...

class EvaluateArtifact(_message.Message):
    __slots__ = ("description", "evaluations_planned", "rows")
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_PLANNED_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    description: bytes
    evaluations_planned: int
    rows: EvaluationRows
    def __init__(self, description: _Optional[bytes] = ..., evaluations_planned: _Optional[int] = ..., rows: _Optional[_Union[EvaluationRows, str]] = ...) -> None: ...

class SignedAnswer(_message.Message):
    __slots__ = ("answer", "signature", "key_id")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    answer: bytes
    signature: bytes
    key_id: str
    def __init__(self, answer: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., key_id: _Optional[str] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("run_id", "attempt", "round", "site", "instruction_digest", "ledger", "arrays_digest", "protocol", "audit", "refusal", "data_description", "moments", "local_update", "derivatives", "evaluation", "securely_aggregated")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    ARRAYS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    DATA_DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_UPDATE_FIELD_NUMBER: _ClassVar[int]
    DERIVATIVES_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    SECURELY_AGGREGATED_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    attempt: int
    round: int
    site: str
    instruction_digest: bytes
    ledger: LogHead
    arrays_digest: bytes
    protocol: int
    audit: LogHead
    refusal: Refusal
    data_description: DataDescription
    moments: Moments
    local_update: LocalUpdate
    derivatives: Derivatives
    evaluation: Evaluation
    securely_aggregated: SecurelyAggregated
    def __init__(self, run_id: _Optional[str] = ..., attempt: _Optional[int] = ..., round: _Optional[int] = ..., site: _Optional[str] = ..., instruction_digest: _Optional[bytes] = ..., ledger: _Optional[_Union[LogHead, _Mapping]] = ..., arrays_digest: _Optional[bytes] = ..., protocol: _Optional[int] = ..., audit: _Optional[_Union[LogHead, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., data_description: _Optional[_Union[DataDescription, _Mapping]] = ..., moments: _Optional[_Union[Moments, _Mapping]] = ..., local_update: _Optional[_Union[LocalUpdate, _Mapping]] = ..., derivatives: _Optional[_Union[Derivatives, _Mapping]] = ..., evaluation: _Optional[_Union[Evaluation, _Mapping]] = ..., securely_aggregated: _Optional[_Union[SecurelyAggregated, _Mapping]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("code", "fields")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    code: str
    fields: _containers.ScalarMap[str, str]
    def __init__(self, code: _Optional[str] = ..., fields: _Optional[_Mapping[str, str]] = ...) -> None: ...

class LogHead(_message.Message):
    __slots__ = ("sequence", "digest")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    digest: bytes
    def __init__(self, sequence: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class DataDescription(_message.Message):
    __slots__ = ("admitted", "reasons", "rows", "rows_noised", "data_fingerprint", "spend", "software_version", "blocks_left_out")
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ROWS_NOISED_FIELD_NUMBER: _ClassVar[int]
    DATA_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SPEND_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    admitted: bool
    reasons: _containers.RepeatedScalarFieldContainer[str]
    rows: int
    rows_noised: bool
    data_fingerprint: bytes
    spend: PrivacySpend
    software_version: str
    blocks_left_out: int
    def __init__(self, admitted: _Optional[bool] = ..., reasons: _Optional[_Iterable[str]] = ..., rows: _Optional[int] = ..., rows_noised: _Optional[bool] = ..., data_fingerprint: _Optional[bytes] = ..., spend: _Optional[_Union[PrivacySpend, _Mapping]] = ..., software_version: _Optional[str] = ..., blocks_left_out: _Optional[int] = ...) -> None: ...

class PrivacySpend(_message.Message):
    __slots__ = ("epsilon", "delta", "budget", "unlimited")
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    UNLIMITED_FIELD_NUMBER: _ClassVar[int]
    epsilon: float
    delta: float
    budget: float
    unlimited: bool
    def __init__(self, epsilon: _Optional[float] = ..., delta: _Optional[float] = ..., budget: _Optional[float] = ..., unlimited: _Optional[bool] = ...) -> None: ...

class Moments(_message.Message):
    __slots__ = ("noised",)
    NOISED_FIELD_NUMBER: _ClassVar[int]
    noised: bool
    def __init__(self, noised: _Optional[bool] = ...) -> None: ...

class LocalUpdate(_message.Message):
    __slots__ = ("weight", "steps", "private", "spend", "run_epsilon", "evaluation")
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    PRIVATE_FIELD_NUMBER: _ClassVar[int]
    SPEND_FIELD_NUMBER: _ClassVar[int]
    RUN_EPSILON_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    weight: int
    steps: int
    private: bool
    spend: PrivacySpend
    run_epsilon: float
    evaluation: Evaluation
    def __init__(self, weight: _Optional[int] = ..., steps: _Optional[int] = ..., private: _Optional[bool] = ..., spend: _Optional[_Union[PrivacySpend, _Mapping]] = ..., run_epsilon: _Optional[float] = ..., evaluation: _Optional[_Union[Evaluation, _Mapping]] = ...) -> None: ...

class Derivatives(_message.Message):
    __slots__ = ("evaluation",)
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    evaluation: Evaluation
    def __init__(self, evaluation: _Optional[_Union[Evaluation, _Mapping]] = ...) -> None: ...

class Evaluation(_message.Message):
    __slots__ = ("present", "correct", "total", "loss_sum", "noised", "noise_scale", "spend", "absolute_error_sum", "squared_error_sum", "pairs")
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    CORRECT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    NOISED_FIELD_NUMBER: _ClassVar[int]
    NOISE_SCALE_FIELD_NUMBER: _ClassVar[int]
    SPEND_FIELD_NUMBER: _ClassVar[int]
    ABSOLUTE_ERROR_SUM_FIELD_NUMBER: _ClassVar[int]
    SQUARED_ERROR_SUM_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    present: bool
    correct: float
    total: float
    loss_sum: float
    noised: bool
    noise_scale: float
    spend: PrivacySpend
    absolute_error_sum: float
    squared_error_sum: float
    pairs: PairSums
    def __init__(self, present: _Optional[bool] = ..., correct: _Optional[float] = ..., total: _Optional[float] = ..., loss_sum: _Optional[float] = ..., noised: _Optional[bool] = ..., noise_scale: _Optional[float] = ..., spend: _Optional[_Union[PrivacySpend, _Mapping]] = ..., absolute_error_sum: _Optional[float] = ..., squared_error_sum: _Optional[float] = ..., pairs: _Optional[_Union[PairSums, _Mapping]] = ...) -> None: ...

class PairSums(_message.Message):
    __slots__ = ("rows", "concordant_squared", "concordant_comparable", "comparable_squared")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CONCORDANT_SQUARED_FIELD_NUMBER: _ClassVar[int]
    CONCORDANT_COMPARABLE_FIELD_NUMBER: _ClassVar[int]
    COMPARABLE_SQUARED_FIELD_NUMBER: _ClassVar[int]
    rows: float
    concordant_squared: float
    concordant_comparable: float
    comparable_squared: float
    def __init__(self, rows: _Optional[float] = ..., concordant_squared: _Optional[float] = ..., concordant_comparable: _Optional[float] = ..., comparable_squared: _Optional[float] = ...) -> None: ...
