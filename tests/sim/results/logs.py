"""One good job of each log as published upstream, for these tests."""

from pathlib import Path

from coda_sim.traces import OnError, Trace, read_trace

HELIOS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue"
HELIOS_JOB = "1425512,uVMrF,vchbv,4,16,1,FAILED,2020-06-09 18:41:27,2020-06-09 18:41:27,2020-06-09 18:45:36,249,0"
OPENB = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
OPENB_POD = "openb-pod-0033,3152,5600,1,1000,,BE,Failed,9965463,9965645,9965463.0"

FIRST, SECOND = (
    {
        "start_time": "2017-10-07 01:12:09",
        "end_time": "2017-10-07 01:13:23",
        "detail": [{"ip": "m47", "gpus": [f"gpu{n}" for n in range(8)]}],
    },
    {
        "start_time": "2017-10-07 01:13:30",
        "end_time": "2017-10-09 06:53:12",
        "detail": [{"ip": "m412", "gpus": [f"gpu{n}" for n in range(8)]}],
    },
)
PHILLY_JOB: dict[str, object] = {
    "status": "Pass",
    "vc": "ee9e8c",
    "jobid": "application_1506638472019_14199",
    "attempts": [FIRST, SECOND],
    "submitted_time": "2017-10-07 01:11:39",
    "user": "ce2f4c",
}
FIRST_RUN_S, SECOND_RUN_S = 74.0, 193_182.0


def read(folder: Path, text: str, on_error: OnError = OnError.SKIP) -> Trace:
    path = folder / "log"
    path.write_text(text, encoding="utf-8")
    return read_trace(path, on_error=on_error)


def csv_line(line: str, header: str, **fields: str) -> str:
    values = dict(zip(header.split(","), line.split(","), strict=True)) | fields
    return ",".join(values.values())
