from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SiteActivity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SITE_ACTIVITY_UNSPECIFIED: _ClassVar[SiteActivity]
    SITE_ACTIVITY_IDLE: _ClassVar[SiteActivity]
    SITE_ACTIVITY_TRAINING: _ClassVar[SiteActivity]
    SITE_ACTIVITY_EVALUATING: _ClassVar[SiteActivity]
    SITE_ACTIVITY_PAUSED: _ClassVar[SiteActivity]
    SITE_ACTIVITY_STOPPED: _ClassVar[SiteActivity]
SITE_ACTIVITY_UNSPECIFIED: SiteActivity
SITE_ACTIVITY_IDLE: SiteActivity
SITE_ACTIVITY_TRAINING: SiteActivity
SITE_ACTIVITY_EVALUATING: SiteActivity
SITE_ACTIVITY_PAUSED: SiteActivity
SITE_ACTIVITY_STOPPED: SiteActivity

class JoinTokenContent(_message.Message):
    __slots__ = ("site", "address", "secret", "authority", "expires_unix")
    SITE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_UNIX_FIELD_NUMBER: _ClassVar[int]
    site: str
    address: str
    secret: str
    authority: bytes
    expires_unix: int
    def __init__(self, site: _Optional[str] = ..., address: _Optional[str] = ..., secret: _Optional[str] = ..., authority: _Optional[bytes] = ..., expires_unix: _Optional[int] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("token_secret", "certificate_request", "certificate_chain", "node_key", "signing_key", "possession", "protocol", "software_version", "site")
    TOKEN_SECRET_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_CHAIN_FIELD_NUMBER: _ClassVar[int]
    NODE_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNING_KEY_FIELD_NUMBER: _ClassVar[int]
    POSSESSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    SITE_FIELD_NUMBER: _ClassVar[int]
    token_secret: str
    certificate_request: bytes
    certificate_chain: bytes
    node_key: bytes
    signing_key: bytes
    possession: bytes
    protocol: int
    software_version: str
    site: str
    def __init__(self, token_secret: _Optional[str] = ..., certificate_request: _Optional[bytes] = ..., certificate_chain: _Optional[bytes] = ..., node_key: _Optional[bytes] = ..., signing_key: _Optional[bytes] = ..., possession: _Optional[bytes] = ..., protocol: _Optional[int] = ..., software_version: _Optional[str] = ..., site: _Optional[str] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("site", "certificate", "certificate_authority", "coordinator_key", "fleet_address", "hub_address", "protocol", "now_unix")
    SITE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_KEY_FIELD_NUMBER: _ClassVar[int]
    FLEET_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HUB_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NOW_UNIX_FIELD_NUMBER: _ClassVar[int]
    site: str
    certificate: bytes
    certificate_authority: bytes
    coordinator_key: bytes
    fleet_address: str
    hub_address: str
    protocol: int
    now_unix: int
    def __init__(self, site: _Optional[str] = ..., certificate: _Optional[bytes] = ..., certificate_authority: _Optional[bytes] = ..., coordinator_key: _Optional[bytes] = ..., fleet_address: _Optional[str] = ..., hub_address: _Optional[str] = ..., protocol: _Optional[int] = ..., now_unix: _Optional[int] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("site", "certificate_request", "signed_unix", "signature", "certificate_chain")
    SITE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    SIGNED_UNIX_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_CHAIN_FIELD_NUMBER: _ClassVar[int]
    site: str
    certificate_request: bytes
    signed_unix: int
    signature: bytes
    certificate_chain: bytes
    def __init__(self, site: _Optional[str] = ..., certificate_request: _Optional[bytes] = ..., signed_unix: _Optional[int] = ..., signature: _Optional[bytes] = ..., certificate_chain: _Optional[bytes] = ...) -> None: ...

class RenewResponse(_message.Message):
    __slots__ = ("certificate", "certificate_authority", "now_unix")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_AUTHORITY_FIELD_NUMBER: _ClassVar[int]
    NOW_UNIX_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    certificate_authority: bytes
    now_unix: int
    def __init__(self, certificate: _Optional[bytes] = ..., certificate_authority: _Optional[bytes] = ..., now_unix: _Optional[int] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("code", "fields", "sentence")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    code: str
    fields: _containers.ScalarMap[str, str]
    sentence: str
    def __init__(self, code: _Optional[str] = ..., fields: _Optional[_Mapping[str, str]] = ..., sentence: _Optional[str] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("acknowledged", "protocol", "software_version")
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    acknowledged: int
    protocol: int
    software_version: str
    def __init__(self, acknowledged: _Optional[int] = ..., protocol: _Optional[int] = ..., software_version: _Optional[str] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("number", "envelope", "protocol", "now_unix")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NOW_UNIX_FIELD_NUMBER: _ClassVar[int]
    number: int
    envelope: bytes
    protocol: int
    now_unix: int
    def __init__(self, number: _Optional[int] = ..., envelope: _Optional[bytes] = ..., protocol: _Optional[int] = ..., now_unix: _Optional[int] = ...) -> None: ...

class SiteReport(_message.Message):
    __slots__ = ("now_unix", "activity", "run_id", "round", "step", "steps", "code", "software_version", "protocol", "leaving", "signature", "acknowledged", "trusted_bundle")
    NOW_UNIX_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    TRUSTED_BUNDLE_FIELD_NUMBER: _ClassVar[int]
    now_unix: int
    activity: SiteActivity
    run_id: str
    round: int
    step: int
    steps: int
    code: str
    software_version: str
    protocol: int
    leaving: bool
    signature: bytes
    acknowledged: int
    trusted_bundle: str
    def __init__(self, now_unix: _Optional[int] = ..., activity: _Optional[_Union[SiteActivity, str]] = ..., run_id: _Optional[str] = ..., round: _Optional[int] = ..., step: _Optional[int] = ..., steps: _Optional[int] = ..., code: _Optional[str] = ..., software_version: _Optional[str] = ..., protocol: _Optional[int] = ..., leaving: _Optional[bool] = ..., signature: _Optional[bytes] = ..., acknowledged: _Optional[int] = ..., trusted_bundle: _Optional[str] = ...) -> None: ...

class ReportReceived(_message.Message):
    __slots__ = ("now_unix", "protocol", "certificate_renewal_due")
    NOW_UNIX_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_RENEWAL_DUE_FIELD_NUMBER: _ClassVar[int]
    now_unix: int
    protocol: int
    certificate_renewal_due: bool
    def __init__(self, now_unix: _Optional[int] = ..., protocol: _Optional[int] = ..., certificate_renewal_due: _Optional[bool] = ...) -> None: ...
