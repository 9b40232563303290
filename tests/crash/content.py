"""What the tools write, as the checker expects it."""


def text_of(job_id: str, number: int) -> str:
    """The content of each file that the `number`th commit of a session makes; of a length that tells a torn one."""
    return f"{job_id} {number}\n" * (1 + number * 997 % 400)
