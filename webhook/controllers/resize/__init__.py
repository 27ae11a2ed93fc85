"""Resize: a placed pod's annotations change, and its share follows as far as there is room.

resize_requests  which pods request another amount, in which order, and the next step of each; pure
quotas           which of them may not grow, by the ResourceQuotas of their namespace
resizer          writes the steps, and reports why pods wait
"""
