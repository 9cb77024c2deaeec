from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Instance(_message.Message):
    __slots__ = ("run_id", "round", "number")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    round: int
    number: int
    def __init__(self, run_id: _Optional[str] = ..., round: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class AdvertiseKeys(_message.Message):
    __slots__ = ("instance",)
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    instance: Instance
    def __init__(self, instance: _Optional[_Union[Instance, _Mapping]] = ...) -> None: ...

class Advertisement(_message.Message):
    __slots__ = ("instance", "site", "mask_key", "channel_key", "signature")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    MASK_KEY_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    instance: Instance
    site: str
    mask_key: bytes
    channel_key: bytes
    signature: bytes
    def __init__(self, instance: _Optional[_Union[Instance, _Mapping]] = ..., site: _Optional[str] = ..., mask_key: _Optional[bytes] = ..., channel_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Terms(_message.Message):
    __slots__ = ("task_digest", "model_digest", "values", "largest_value", "total_weight", "threshold")
    TASK_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    LARGEST_VALUE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    task_digest: bytes
    model_digest: bytes
    values: int
    largest_value: float
    total_weight: int
    threshold: int
    def __init__(self, task_digest: _Optional[bytes] = ..., model_digest: _Optional[bytes] = ..., values: _Optional[int] = ..., largest_value: _Optional[float] = ..., total_weight: _Optional[int] = ..., threshold: _Optional[int] = ...) -> None: ...

class ShareKeys(_message.Message):
    __slots__ = ("instance", "terms", "cohort")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    COHORT_FIELD_NUMBER: _ClassVar[int]
    instance: Instance
    terms: Terms
    cohort: _containers.RepeatedCompositeFieldContainer[Advertisement]
    def __init__(self, instance: _Optional[_Union[Instance, _Mapping]] = ..., terms: _Optional[_Union[Terms, _Mapping]] = ..., cohort: _Optional[_Iterable[_Union[Advertisement, _Mapping]]] = ...) -> None: ...

class SealedShares(_message.Message):
    __slots__ = ("site", "content")
    SITE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    site: str
    content: bytes
    def __init__(self, site: _Optional[str] = ..., content: _Optional[bytes] = ...) -> None: ...

class ShareDigests(_message.Message):
    __slots__ = ("site", "seed", "key")
    SITE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    site: str
    seed: bytes
    key: bytes
    def __init__(self, site: _Optional[str] = ..., seed: _Optional[bytes] = ..., key: _Optional[bytes] = ...) -> None: ...

class SharedKeys(_message.Message):
    __slots__ = ("instance", "sealed", "digests", "seed_commitment")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    SEED_COMMITMENT_FIELD_NUMBER: _ClassVar[int]
    instance: Instance
    sealed: _containers.RepeatedCompositeFieldContainer[SealedShares]
    digests: _containers.RepeatedCompositeFieldContainer[ShareDigests]
    seed_commitment: bytes
    def __init__(self, instance: _Optional[_Union[Instance, _Mapping]] = ..., sealed: _Optional[_Iterable[_Union[SealedShares, _Mapping]]] = ..., digests: _Optional[_Iterable[_Union[ShareDigests, _Mapping]]] = ..., seed_commitment: _Optional[bytes] = ...) -> None: ...

class MaskInput(_message.Message):
    __slots__ = ("instance", "sealed")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    instance: Instance
    sealed: _containers.RepeatedCompositeFieldContainer[SealedShares]
    def __init__(self, instance: _Optional[_Union[Instance, _Mapping]] = ..., sealed: _Optional[_Iterable[_Union[SealedShares, _Mapping]]] = ...) -> None: ...

class MaskedInput(_message.Message):
    __slots__ = ("instance",)
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    instance: Instance
    def __init__(self, instance: _Optional[_Union[Instance, _Mapping]] = ...) -> None: ...

class ConfirmSurvivors(_message.Message):
    __slots__ = ("instance", "survivors")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    instance: Instance
    survivors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, instance: _Optional[_Union[Instance, _Mapping]] = ..., survivors: _Optional[_Iterable[str]] = ...) -> None: ...

class Confirmation(_message.Message):
    __slots__ = ("instance", "signature")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    instance: Instance
    signature: bytes
    def __init__(self, instance: _Optional[_Union[Instance, _Mapping]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class SiteSignature(_message.Message):
    __slots__ = ("site", "signature")
    SITE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    site: str
    signature: bytes
    def __init__(self, site: _Optional[str] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Unmask(_message.Message):
    __slots__ = ("instance", "signatures")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    instance: Instance
    signatures: _containers.RepeatedCompositeFieldContainer[SiteSignature]
    def __init__(self, instance: _Optional[_Union[Instance, _Mapping]] = ..., signatures: _Optional[_Iterable[_Union[SiteSignature, _Mapping]]] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("site", "content")
    SITE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    site: str
    content: bytes
    def __init__(self, site: _Optional[str] = ..., content: _Optional[bytes] = ...) -> None: ...

class Unmasking(_message.Message):
    __slots__ = ("instance", "seeds", "keys")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    instance: Instance
    seeds: _containers.RepeatedCompositeFieldContainer[Share]
    keys: _containers.RepeatedCompositeFieldContainer[Share]
    def __init__(self, instance: _Optional[_Union[Instance, _Mapping]] = ..., seeds: _Optional[_Iterable[_Union[Share, _Mapping]]] = ..., keys: _Optional[_Iterable[_Union[Share, _Mapping]]] = ...) -> None: ...
