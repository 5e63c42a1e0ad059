//! Errors of calls: the codes of JSON-RPC, with the stable codes of the API and the fields of the call.

use dispatch::RoutineCaller;
use domain::routine::cron_job::job_error;
use protocol::{ErrorCode, FieldError, RpcError, RpcErrorData};
use tracing::error;

use crate::{
    problem::ApiError,
    public::{request::RpcCaller, routines::caller},
};

impl From<ApiError> for RpcError {
    /// The error of the API as the error of a call. Its cause is logged here, because no layer sees it.
    fn from(error: ApiError) -> Self {
        if error.status().is_server_error() {
            error!(cause = error.causes(), "a call by JSON-RPC failed");
        }
        let (code, message, field) = match error.errors() {
            [] => (Self::SERVER_ERROR, error.detail().to_owned(), None),
            [first, ..] => {
                let FieldError { field, message } = job_error(first.clone());
                (Self::INVALID_PARAMS, format!("{field}: {message}"), Some(field))
            }
        };
        Self { code, message, data: Some(RpcErrorData { code: error.code().as_str().to_owned(), field }) }
    }
}

impl RpcCaller {
    /// The caller of a change, if the role allows one. `action` is what the audit calls it.
    pub(super) fn writer(self, action: &str) -> Result<RoutineCaller, ApiError> {
        if !self.who.role.may_write() {
            return Err(ApiError::new(ErrorCode::Forbidden, "insufficient role: changes need the role user or admin"));
        }
        Ok(self.routine_caller(action))
    }

    /// The caller of a method for admins.
    pub(super) fn admin(self, action: &str) -> Result<RoutineCaller, ApiError> {
        if !self.who.role.sees_all() {
            return Err(ApiError::new(ErrorCode::Forbidden, "insufficient role: this needs the role admin"));
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
