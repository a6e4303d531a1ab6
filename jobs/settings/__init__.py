"""Every setting of Longbatch, by groups; `load` reads them once at each composition root."""

from jobs.settings.environment import (
    OTHER_VARIABLES,
    ContentSide,
    EngineSide,
    Settings,
    load,
    load_database,
)
from jobs.settings.group import ENV_PREFIX, Group
from jobs.settings.servers import (
    BrokerSettings,
    DatabaseSettings,
    EngineKind,
    EngineSettings,
    TokenizerSettings,
    TritonSettings,
)
from jobs.settings.service import ApiSettings, ConsoleSettings, LimitSettings, WebhookSettings
from jobs.settings.sign_in import OidcRule, OidcSettings
from jobs.settings.work import (
    BatchSettings,
    DocumentSettings,
    FileSettings,
    JobSettings,
    MaintenanceSettings,
    MetricsSettings,
    TraceSettings,
)
