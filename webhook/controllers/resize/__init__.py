"""Resize: the annotations of a placed pod are changed, and its share follows as far as there is room.

resize_requests  which pods ask for another amount, in which order, and the next step of each; pure
quotas           which of them may not grow, by the ResourceQuotas of their namespace
resizer          writes the steps, and tells the pods that wait why
"""
