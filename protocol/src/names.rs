//! Values that are names on the wire and in the store: conversion both ways from one table.

macro_rules! wire_names {
    ($name:ident { $($variant:ident => $text:literal),+ $(,)? }) => {
        impl $name {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name on the wire and in the store.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// From the name on the wire.
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)+ _ => None }
            }
        }

        #[cfg(test)]
        impl crate::names::WireName for $name {
            const ALL: &'static [Self] = Self::ALL;
            fn name(self) -> &'static str {
                self.as_str()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

pub(crate) use wire_names;

/// A type with a table of names.
#[cfg(test)]
pub(crate) trait WireName:
    Copy + std::fmt::Debug + PartialEq + serde::Serialize + serde::de::DeserializeOwned + 'static
{
    const ALL: &'static [Self];
    fn name(self) -> &'static str;
}

#[cfg(test)]
mod tests {
    use super::WireName;
    use crate::{
        ActorRole, AuditOutcome, BudgetPeriod, CatchUp, DeliveryStatus, DeliveryVerdict, DisabledReason,
        EgressDecision, EventKind, GateDecision, GateKind, GateScope, GateState, InstanceEventKind, JobMode, JobReason,
        JobState, LimitName, NotificationKind, Overlap, PromptMode, RoutineActionKind, RoutineCronAction,
        RoutineSession, RoutineStatus, RunReason, RunStatus, Source, ThreadState, TriggerType, UsageBy, WakeMode,
    };

    fn assert_spelled_alike<T: WireName>() {
        for value in T::ALL {
            let json = serde_json::Value::from(value.name());
            assert_eq!(serde_json::to_value(value).unwrap(), json);
            assert_eq!(serde_json::from_value::<T>(json).unwrap(), *value);
        }
    }

    #[test]
    fn the_table_and_serde_spell_each_name_alike() {
        assert_spelled_alike::<ActorRole>();
        assert_spelled_alike::<AuditOutcome>();
        assert_spelled_alike::<BudgetPeriod>();
        assert_spelled_alike::<CatchUp>();
        assert_spelled_alike::<DeliveryStatus>();
        assert_spelled_alike::<DeliveryVerdict>();
        assert_spelled_alike::<DisabledReason>();
        assert_spelled_alike::<EgressDecision>();
        assert_spelled_alike::<EventKind>();
        assert_spelled_alike::<GateDecision>();
        assert_spelled_alike::<GateKind>();
        assert_spelled_alike::<GateScope>();
        assert_spelled_alike::<GateState>();
        assert_spelled_alike::<InstanceEventKind>();
        assert_spelled_alike::<JobMode>();
        assert_spelled_alike::<JobReason>();
        assert_spelled_alike::<JobState>();
        assert_spelled_alike::<LimitName>();
        assert_spelled_alike::<NotificationKind>();
        assert_spelled_alike::<Overlap>();
        assert_spelled_alike::<PromptMode>();
        assert_spelled_alike::<RoutineActionKind>();
        assert_spelled_alike::<RoutineCronAction>();
        assert_spelled_alike::<RoutineSession>();
        assert_spelled_alike::<RoutineStatus>();
        assert_spelled_alike::<RunReason>();
        assert_spelled_alike::<RunStatus>();
        assert_spelled_alike::<TriggerType>();
        assert_spelled_alike::<WakeMode>();
        assert_spelled_alike::<Source>();
        assert_spelled_alike::<ThreadState>();
        assert_spelled_alike::<UsageBy>();
    }
}
