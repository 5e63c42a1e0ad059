//! Errors of calls: the codes of JSON-RPC, with the stable codes of the API.

use dispatch::{RoutineCaller, RoutineError};
use domain::routine::cron_job::InvalidParam;
use protocol::{ErrorCode, RpcError, RpcErrorData};
use store::StoreError;
use tracing::error;

use crate::{
    problem::ApiError,
    public::{request::RpcCaller, routines::caller},
};

pub(super) fn invalid_params(field: &str, message: &str) -> RpcError {
    let data = RpcErrorData { code: ErrorCode::Invalid.as_str().to_owned(), field: Some(field.to_owned()) };
    RpcError { code: RpcError::INVALID_PARAMS, message: format!("{field}: {message}"), data: Some(data) }
}

pub(super) fn invalid_param(invalid: &InvalidParam) -> RpcError {
    invalid_params(&invalid.field, &invalid.message)
}

pub(super) fn refused(code: ErrorCode, message: &str) -> RpcError {
    let data = RpcErrorData { code: code.as_str().to_owned(), field: None };
    RpcError { code: RpcError::SERVER_ERROR, message: message.to_owned(), data: Some(data) }
}

/// The error of the API as the error of a call. Its cause is logged here, because no layer sees it.
pub(super) fn from_api(error: &ApiError) -> RpcError {
    if error.status().is_server_error() {
        error!(cause = error.causes(), "a call by JSON-RPC failed");
    }
    match error.errors() {
        [] => refused(error.code(), error.detail()),
        [first, ..] => invalid_params(&first.field, &first.message),
    }
}

pub(super) fn of_routine(error: RoutineError) -> RpcError {
    from_api(&error.into())
}

pub(super) fn of_store(error: StoreError) -> RpcError {
    from_api(&error.into())
}

impl RpcCaller {
    /// The caller of a change, if the role allows one. `action` is what the audit calls it.
    pub(super) fn writer(self, action: &str) -> Result<RoutineCaller, RpcError> {
        if !self.who.role.may_write() {
            return Err(refused(ErrorCode::Forbidden, "insufficient role: changes need the role user or admin"));
        }
        Ok(self.routine_caller(action))
    }

    /// The caller of a method for admins.
    pub(super) fn admin(self, action: &str) -> Result<RoutineCaller, RpcError> {
        if !self.who.role.sees_all() {
            return Err(refused(ErrorCode::Forbidden, "insufficient role: this needs the role admin"));
        }
        Ok(self.routine_caller(action))
    }

    pub(super) fn reader(&self) -> RoutineCaller {
        caller(&self.who, self.entry.clone())
    }

    fn routine_caller(self, action: &str) -> RoutineCaller {
        let mut entry = self.entry;
        action.clone_into(&mut entry.action);
        caller(&self.who, entry)
    }
}
